"""Figures beside the bars that they have to meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from ttm.training.bench.report import decimals, rows_table


@dataclass(frozen=True)
class Line:
    """One figure with its bar."""

    what: str
    value: float | None
    digits: int
    bar: str
    holds: bool | None
    """Whether it meets the bar; None if there is none, or no value."""


def bar_table(title: str, rows: Iterable[Line]) -> Table:
    """Return the table of the figures beside their bars."""
    columns: Mapping[str, Callable[[Line], str]] = {
        "figure": lambda row: row.what,
        "value": lambda row: decimals(row.value, row.digits),
        "bar": lambda row: row.bar,
        "holds": lambda row: "" if row.holds is None else ("yes" if row.holds else "no"),
    }
    return rows_table(title, columns, rows)
