"""The tables that benchmarks print, and the figures that they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ttm.training.bench.common import Report, decimals, rows_table


def test_a_table_has_a_column_for_each_entry_and_a_line_for_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = {"core": lambda row: row[0], "cost": lambda row: decimals(row[1], 2)}
    report = Report()
    report.table(rows_table("A title", columns, [("ttm", 1.5), ("new", None)]), "a note [1]")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["A", "title"]
    for line in (["core", "cost"], ["ttm", "1.50"], ["new", "—"], ["a", "note", "[1]"]):
        assert line in lines


def test_figures_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    report = Report(tmp_path / "figures.json", threads=2)
    report.figures["rows"] = [1.5]
    report.write()
    assert json.loads((tmp_path / "figures.json").read_text()) == {"threads": 2, "rows": [1.5]}
