"""The plot of the study: choices over the gap, a curve for each core."""

from __future__ import annotations

from ttm.sim.evaluation.condition import LIVE
from ttm.sim.evaluation.pages.curves import Point, draw_rates
from ttm.training.study.suite.report import Report
from ttm.training.study.suite.statistics import donor_choices, right_choices

SWAP = "swap"


def draw_choices(report: Report) -> str:
    """Return an SVG with one panel for each probe.

    The panel of exchanged memories shows the choices that followed the donor.
    """
    panels: dict[str, list[Point]] = {}
    for probe in report.probes:
        counted = donor_choices if probe == SWAP else right_choices
        points = [
            Point(variant, gap, counted(found))
            for variant in report.variants
            for gap in report.gaps
            if (found := report.select(variant, gap, probe))
        ]
        panels[_title(probe)] = points
    return draw_rates(panels)


def _title(probe: str) -> str:
    if probe == LIVE:
        return "right choice"
    return "donor's choice, memory swapped" if probe == SWAP else f"right choice, {probe}"
