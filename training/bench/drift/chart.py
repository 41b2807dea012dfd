"""The chart of `ttm bench drift`: the norm of the memory and the action error against the tick number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ttm.training.bench.drift.summary import Bin, DriftSummary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, whose colours colour-blind people can distinguish."""

LOGARITHMIC_FROM = 100
"""Norms that differ by more than this factor are drawn on a logarithmic scale."""


def draw_drift(summaries: Mapping[str, DriftSummary], path: Path) -> None:
    """Write a PNG. summaries: name in the legend -> summary."""
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    norm_axes, error_axes = figure.subplots(1, 2)
    for number, (name, summary) in enumerate(summaries.items()):
        colour = COLOURS[number % len(COLOURS)]
        for bins, style in ((summary.kept, "-"), (summary.control, "--")):
            _line(norm_axes, bins, "norm", colour, style)
            _line(error_axes, bins, "error", colour, style)
        norm_axes.plot([], [], color=colour, label=name)
    norm_axes.plot([], [], "--", color="#666666", label="the same, memory reset at every seam")
    norm_axes.set_title("Does the memory grow?", loc="left")
    norm_axes.set_ylabel("mean norm of a memory token")
    error_axes.set_title("Do the actions get worse?", loc="left")
    error_axes.set_ylabel("action error (standard deviations)")
    norms = [
        found.norm for summary in summaries.values() for found in (*summary.kept, *summary.control)
    ]
    logarithmic = max(norms) > LOGARITHMIC_FROM * min(norms) > 0
    norm_axes.set(yscale="log") if logarithmic else norm_axes.set_ylim(bottom=0)
    error_axes.set_ylim(bottom=0)
    for axes in (norm_axes, error_axes):
        axes.set_xlabel("ticks since the memory was empty")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(len(summaries) + 1, 4), frameon=False)
    figure.savefig(path)


def _line(axes: Axes, bins: list[Bin], what: str, colour: str, style: str) -> None:
    """Draw the means at the middles of the bins.

    A solid line, for a memory that is kept, has a band of one standard error on either side.
    """
    ticks = [(found.first + found.stop) / 2 for found in bins]
    means = [getattr(found, what) for found in bins]
    axes.plot(ticks, means, style, color=colour, linewidth=1.8 if style == "-" else 1.2)
    if style == "-":
        spread = [getattr(found, f"{what}_deviation") for found in bins]
        low, high = (
            [mean + side * s for mean, s in zip(means, spread, strict=True)] for side in (-1, 1)
        )
        axes.fill_between(ticks, low, high, color=colour, alpha=0.15, linewidth=0)
