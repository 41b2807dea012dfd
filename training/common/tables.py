"""How the commands show their figures: tables to read, and a file for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ttm.datasets.tables import TitledTable
from ttm.policy.errors import UserError


def compact_table(title: str, columns: Sequence[str]) -> Table:
    """Close columns, so that 80 characters do; the first is text, the others are figures."""
    table = TitledTable(title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def write_figures(console: Console, path: Path | None, figures: str) -> None:
    """Writes JSON where the user asked for it (`--json`), and says so."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(figures)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error}); give another file with --json") from error
    console.print(f"figures: {path}", soft_wrap=True)
