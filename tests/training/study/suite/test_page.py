"""The committed figures, and the table that the study prints of them."""

from __future__ import annotations

import pytest
from generated import ROOT

from ttm.training.study.suite_report import Report, merged_figures, read_figures

RESULTS = ROOT / "training" / "study" / "results" / "suite"


@pytest.mark.parametrize(
    ("name", "heading", "row"),
    [
        ("content.json", "all tasks", ("lstm", "1", "22/60 37 (26 to 49)*")),
        ("cue_left_on.json", "take_back", ("none", "1", "99/100 99 (95 to 100)")),
    ],
)
def test_the_tables_have_the_rates_of_each_core(
    name: str, heading: str, row: tuple[str, ...]
) -> None:
    report = Report(merged_figures([read_figures(RESULTS / name)]))
    tables = {
        table.heading: list(zip(*(column.cells for column in table.columns), strict=True))
        for table in report.tables()
    }
    assert row in [each[:3] for each in tables[f"Right choices, {heading}"]]
