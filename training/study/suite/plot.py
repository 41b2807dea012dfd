"""The plot of the study: choices over the gap, a curve for each core."""

from __future__ import annotations

from ttm.sim.evaluation.condition import LIVE
from ttm.sim.evaluation.pages.curves import Point, draw_rates
from ttm.training.study.suite.report import Report
from ttm.training.study.suite.statistics import donor_choices, right_choices

SWAP = "swap"


def draw_choices(report: Report) -> str:
    """Return an SVG with a panel for each task, and one for each probe over all tasks.

    The panel of exchanged memories shows the choices that followed the donor.
    """
    measures: list[tuple[str, str, str | None]] = []  # title, probe, task
    for probe in report.probes:
        if probe == LIVE and len(report.tasks) > 1:
            measures += [(task, probe, task) for task in report.tasks]
        else:
            measures.append((_title(probe), probe, None))
    return draw_rates({title: _points(report, probe, task) for title, probe, task in measures})


def _points(report: Report, probe: str, task: str | None) -> list[Point]:
    counted = donor_choices if probe == SWAP else right_choices
    return [
        Point(variant, gap, counted(found))
        for variant in report.variants
        for gap in report.gaps
        if (found := report.select(variant, gap, probe, task))
    ]


def _title(probe: str) -> str:
    if probe == LIVE:
        return "right choice"
    return "donor's choice, memory swapped" if probe == SWAP else f"right choice, {probe}"
