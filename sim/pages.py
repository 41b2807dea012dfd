"""Report pages: HTML files that hold all they need, so that they can be sent by mail."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import jinja2
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ttm.policy.files import write_atomically
from ttm.sim.results import Rate

STYLE = {"svg.hashsalt": "ttm", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
"""The same figures give the same file; text stays text."""
MARKERS = "osD^vPX*<>"
IN_A_ROW = 4
"""The largest number of panels in a row."""
LONGEST_NAME = 36
"""Names of series are cut to so many characters, of which the last ones tell most of a path."""


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write the page that a template of `ttm.sim.assets` makes of `values` to `path`, and return that."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(
            lambda name: resources.files("ttm.sim.assets").joinpath(name).read_text("utf-8")
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda rate: f"{100 * rate:.0f} %"
    write_atomically(path, environment.get_template(template).render(**values))
    return path


def video_path(folder: Path, task: str, seed: int) -> Path:
    """Return where the video of one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}.mp4"


def memory_path(folder: Path, task: str, seed: int) -> Path:
    """Return where the picture of what the memory did in one episode lies in `folder`."""
    return folder / f"{task}_{seed:04d}_memory.webp"


def encoded(path: Path) -> str | None:
    """Return the file as text for a page, or None if there is none."""
    return base64.b64encode(path.read_bytes()).decode() if path.is_file() else None


@dataclass(frozen=True)
class Point:
    """A rate of one series."""

    series: str
    gap: int | None
    rate: Rate


def draw_rates(measures: Mapping[str, Sequence[Point]]) -> str:
    """Return the SVG of one panel for each measure: name -> its points.

    With several gaps, a panel has one curve over the gap for each series; otherwise each series has a line
    with a dot for the rate and a bar for its interval. The element `desc` says all rates in words.
    """
    points = [point for each in measures.values() for point in each]
    series = list(dict.fromkeys(point.series for point in points))
    over_gaps = len({point.gap for point in points if point.gap is not None}) > 1
    height = 3.2 if over_gaps else 0.9 + 0.32 * len(series)
    names = 0 if over_gaps else 0.07 * max(len(_shortened(name)) for name in series)  # inches
    rows = max(1, math.ceil(len(measures) / IN_A_ROW))
    columns = math.ceil(len(measures) / rows)
    figure = Figure(figsize=(4.2 * columns + names, height * rows), layout="constrained")
    for number, (name, each) in enumerate(measures.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(name, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        (_draw_over_gaps if over_gaps else _draw_side_by_side)(axes, each, series)
        if number % columns and not over_gaps:
            axes.tick_params(labelleft=False)
    if over_gaps:
        _share_gaps(figure.axes, points)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    in_words = [
        f"{name}, {point.series}{'' if point.gap is None else f' at gap {point.gap}'}: "
        f"{100 * point.rate.rate:.0f} % of {point.rate.episodes}"
        for name, each in measures.items()
        for point in each
    ]
    return _to_svg(figure, "\n".join(in_words))


def _draw_over_gaps(axes: Axes, points: Sequence[Point], series: Sequence[str]) -> None:
    for place, name in enumerate(series):
        of_series = sorted(
            (p for p in points if p.series == name and p.gap is not None), key=lambda p: p.gap or 0
        )
        # Small shifts keep bars of equal rates apart.
        shift = 0.25 * (place - (len(series) - 1) / 2)
        axes.errorbar(
            [(p.gap or 0) + shift for p in of_series],
            [100 * p.rate.rate for p in of_series],
            yerr=_bars(of_series),
            color=f"C{place % 10}",
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.4,
            elinewidth=0.9,
            capsize=2,
            label=_shortened(name),
        )
    axes.set(xlabel="gap (ticks)", ylabel="% of episodes", ylim=(-3, 103))
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)


def _share_gaps(panels: Sequence[Axes], points: Sequence[Point]) -> None:
    """Let all panels show the same gaps at the same places, also those with points at some of them only."""
    gaps = sorted({point.gap for point in points if point.gap is not None})
    lows, highs = zip(*(axes.get_xlim() for axes in panels), strict=True)
    margin = 0.05 * (gaps[-1] - gaps[0])
    limits = min(gaps[0] - margin, *lows), max(gaps[-1] + margin, *highs)
    for axes in panels:
        axes.set(xticks=gaps, xlim=limits)


def _draw_side_by_side(axes: Axes, points: Sequence[Point], series: Sequence[str]) -> None:
    for point in points:
        axes.errorbar(
            100 * point.rate.rate,
            series.index(point.series),
            xerr=_bars([point]),
            color="C0",
            marker="o",
            markersize=5,
            elinewidth=1.6,
        )
    axes.set_yticks(range(len(series)), [_shortened(name) for name in series])
    axes.set(ylim=(len(series) - 0.5, -0.5), xlim=(-3, 103), xlabel="% of episodes")
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _bars(points: Sequence[Point]) -> list[list[float]]:
    """Return how far the intervals reach below and above the rates, in per cent."""
    # The differences of rounded numbers must not fall below 0.
    below = [max(0.0, 100 * (p.rate.rate - p.rate.interval[0])) for p in points]
    above = [max(0.0, 100 * (p.rate.interval[1] - p.rate.rate)) for p in points]
    return [below, above]


def _to_svg(figure: Figure, in_words: str) -> str:
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]  # a page takes no XML declaration within
    begin = text.index(">") + 1
    return f"{text[:begin]}\n <desc>{escape(in_words)}</desc>{text[begin:]}"
