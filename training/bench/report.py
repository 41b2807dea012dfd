"""What all benchmarks do with their figures: print tables with notes, and write JSON on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from ttm.training.common.tables import compact_table, write_figures

Row = TypeVar("Row")


def rows_table(
    title: str, columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]
) -> Table:
    """Return a compact table with one line for each of `rows`.

    columns: heading -> a function from the row to the text of its cell. The first column is text,
    the others hold figures.
    """
    table = compact_table(title, tuple(columns))
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def decimals(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or a dash if there is no value."""
    return "—" if value is None else f"{value:.{digits}f}"


class Report:
    """Prints the tables of a benchmark and collects the figures that `--json` writes."""

    def __init__(self, json_path: Path | None = None, **figures: Any) -> None:
        """json_path: the file for the figures, None for no file; figures: the first ones in it."""
        self.console = Console(highlight=False)
        self.figures = dict(figures)
        self._json_path = json_path

    def text(self, text: str) -> None:
        """Print text whose lines are already wrapped."""
        self.console.print(text, soft_wrap=True, markup=False)

    def table(self, table: Table, notes: str = "") -> None:
        """Print a table, and notes on its columns below it."""
        self.console.print(table)
        if notes:
            self.text(notes)

    def write(self) -> None:
        """Write the collected figures as JSON if the user asked for a file."""
        figures = json.dumps(self.figures, indent=2, ensure_ascii=False)
        write_figures(self.console, self._json_path, figures)
