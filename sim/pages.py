"""Report pages: HTML files that hold all they need, so that they can be sent by mail."""

from __future__ import annotations

import base64
import io
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999999")
"""Of all charts: those of Okabe and Ito, which colour-blind readers can tell apart, and two more."""
IN_A_ROW = 3
"""The largest number of panels in a row."""
LONGEST_NAME = 36
"""Names of series are cut to so many characters, of which the last ones tell most of a path."""


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write the page that a template of `ttm.sim.assets` makes of `values` to `path`, and return that."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ttm.sim", "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda rate: f"{100 * rate:.0f} %"
    environment.globals |= {
        "date": date.today().isoformat(),
        "version": version("ttm-policy-stack"),
    }
    if Path(sys.argv[0]).name in ("ttm", "cli.py"):  # as a script, or by python -m
        environment.globals["command"] = shlex.join(["ttm", *sys.argv[1:]])
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
    figure = Figure(figsize=(3.5 * columns + names, height * rows), layout="constrained")
    words = []
    for number, (name, each) in enumerate(measures.items()):
        first = figure.axes[0] if over_gaps and number else None
        axes = figure.add_subplot(rows, columns, number + 1, sharex=first)
        axes.set_title(name, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        (_draw_over_gaps if over_gaps else _draw_side_by_side)(axes, each, series)
        if number % columns and not over_gaps:
            axes.tick_params(labelleft=False)
        for point in each:
            where = "" if point.gap is None else f" at gap {point.gap}"
            share = f"{100 * point.rate.rate:.0f} % of {point.rate.episodes}"
            words.append(f"{name}, {point.series}{where}: {share}")
    if over_gaps:
        figure.axes[0].set_xticks(sorted({point.gap for point in points if point.gap is not None}))
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    return to_svg(figure, "\n".join(words))


def _draw_over_gaps(axes: Axes, points: Sequence[Point], series: Sequence[str]) -> None:
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 0.9, "capsize": 2}
    for place, name in enumerate(series):
        found = [(p.gap, p.rate) for p in points if p.series == name and p.gap is not None]
        found.sort(key=lambda each: each[0])
        shift = 0.25 * (place - (len(series) - 1) / 2)  # keeps bars of equal rates apart
        gaps, rates = [gap + shift for gap, _ in found], [rate for _, rate in found]
        look = {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            **style,
        }
        heights = [100 * rate.rate for rate in rates]
        axes.errorbar(gaps, heights, yerr=_bars(rates), label=_shortened(name), **look)
    axes.set(xlabel="gap (ticks)", ylabel="% of episodes", ylim=(-3, 103))
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)


def _draw_side_by_side(axes: Axes, points: Sequence[Point], series: Sequence[str]) -> None:
    style: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markersize": 5, "elinewidth": 1.6}
    for point in points:
        place, rate = series.index(point.series), point.rate
        axes.errorbar(100 * rate.rate, place, xerr=_bars([rate]), **style)
    axes.set_yticks(range(len(series)), [_shortened(name) for name in series])
    axes.set(ylim=(len(series) - 0.5, -0.5), xlim=(-3, 103), xlabel="% of episodes")
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _bars(rates: Sequence[Rate]) -> list[list[float]]:
    """Return how far the intervals reach below and above the rates, in per cent."""
    # The differences of rounded numbers must not fall below 0.
    below = [max(0.0, 100 * (rate.rate - rate.interval[0])) for rate in rates]
    above = [max(0.0, 100 * (rate.interval[1] - rate.rate)) for rate in rates]
    return [below, above]


def to_svg(figure: Figure, in_words: str) -> str:
    """Return the SVG of a figure; the element `desc` says in words what it shows."""
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]  # a page takes no XML declaration within
    begin = text.index(">") + 1
    return f"{text[:begin]}\n <desc>{escape(in_words)}</desc>{text[begin:]}"
