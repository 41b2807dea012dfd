"""The picture of an episode: what its memory read and wrote, on the camera images and over time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from textwrap import shorten

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ttm.datasets.show.contact_sheet import spaced_ticks
from ttm.policy.run.memory_attention import Which
from ttm.sim.memory_picture.charts import (
    DPI,
    FAINT,
    INK,
    MEMORY_COLOUR,
    RULE,
    TITLES,
    VERBS,
    Page,
    enlarged,
    heat_over,
    heat_scale,
    stack_shares,
)
from ttm.sim.memory_picture.trace import MemoryTrace

LEFT, CONTENT, RIGHT = 1.6, 12.0, 2.4
"""Widths of the columns of the page: names, pictures and charts, legends."""
GAP, CAMERA_GAP = 0.06, 0.18
HEADER, CHART, CHART_GAP, FOOTER = 1.5, 1.6, 0.5, 0.75
"""Heights of the rows of the page."""
EXPLANATION = (
    "Heat: which places in the image were read (warm), and written into the memory (cool). "
    "100 % is all that was read, or written, at a tick, from all sources together."
)
Chart = Callable[[Page, MemoryTrace, float], Axes]
"""Draws a chart at a distance from the top of the page."""


def draw_strip(trace: MemoryTrace, columns: int = 8) -> Figure:
    """Draw the camera images at up to `columns` evenly chosen ticks, above charts of all ticks."""
    ticks = spaced_ticks(trace.num_ticks, columns)
    tile = CONTENT / columns - GAP
    heights = {c: tile * frames.shape[1] / frames.shape[2] for c, frames in trace.frames.items()}
    rows = 1 + len(trace.directions)
    images = sum(rows * (height + GAP) + CAMERA_GAP for height in heights.values())
    charts = _charts(trace)
    size = (LEFT + CONTENT + RIGHT, HEADER + images + len(charts) * (CHART + CHART_GAP) + FOOTER)
    page = Page(*size)
    _draw_title(page, trace, ticks)
    top = HEADER
    for camera, height in heights.items():
        _draw_camera(page, trace, camera, ticks, top, (tile, height))
        top += rows * (height + GAP) + CAMERA_GAP
    for number, which in enumerate(trace.directions):
        left = LEFT + CONTENT + 0.25 + number
        page.text(left, HEADER, f"{VERBS[which]},\nper cell", 10)
        heat_scale(page, left, HEADER + 0.5, 2.2, which, trace.brightest)
    for draw in charts:
        axes = draw(page, trace, top + CHART_GAP)
        _align(axes, trace, ticks, last=draw is charts[-1])
        _mark_moments(axes, trace, named=draw is charts[0])
        top += CHART + CHART_GAP
    return page.figure


def _charts(trace: MemoryTrace) -> list[Chart]:
    shares = [partial(_draw_shares, which=which) for which in trace.directions]
    return [*shares, _draw_slots, _draw_norms]


def _draw_title(page: Page, trace: MemoryTrace, ticks: list[int]) -> None:
    rate = trace.spec.rate_hz
    page.text(
        0.25, 0.2, f"“{shorten(trace.seen.instruction, 90, placeholder=' …')}”", 18, weight="bold"
    )
    facts = f"{trace.seen.title}, {trace.num_ticks} ticks at {rate:g} Hz ({trace.num_ticks / rate:.1f} s)"
    page.text(0.25, 0.58, facts, 11, color=FAINT)
    page.text(0.25, 0.84, EXPLANATION, 11, color=FAINT)
    for column, tick in enumerate(ticks):
        middle = LEFT + (column + 0.5) * CONTENT / len(ticks)
        page.text(
            middle,
            HEADER - 0.06,
            f"tick {tick}  ({tick / rate:.1f} s)",
            10,
            ha="center",
            va="bottom",
        )


def _draw_camera(
    page: Page,
    trace: MemoryTrace,
    camera: str,
    ticks: list[int],
    top: float,
    tile: tuple[float, float],
) -> None:
    """Draw the rows of one camera: its images, then what was read and what was written of them.

    tile: width and height of an image.
    """
    width, height = tile
    size = (round(2 * height * DPI), round(2 * width * DPI))
    for row, which in enumerate((None, *trace.directions)):
        at = top + row * (height + GAP)
        label = f"{camera} camera" if which is None else VERBS[which]
        weight = "bold" if which is None else "normal"
        page.text(LEFT - 0.15, at + height / 2, label, 11, ha="right", va="center", weight=weight)
        for column, tick in enumerate(ticks):
            frame = trace.frames[camera][tick]
            pixels = (
                enlarged(frame, size)
                if which is None
                else heat_over(frame, trace.maps[which][camera][tick], trace.brightest, which, size)
            )
            page.image(
                LEFT + (column + 0.5) * CONTENT / len(ticks) - width / 2, at, width, height, pixels
            )


def _draw_shares(page: Page, trace: MemoryTrace, top: float, which: Which) -> Axes:
    axes = _chart(page, top, TITLES[which])
    axes.legend(
        handles=stack_shares(axes, trace, which), title="source, mean", loc="center left",
        bbox_to_anchor=(1.01, 0.5), frameon=False, labelspacing=0.25, handlelength=1.2,
        alignment="left", borderaxespad=0.2, fontsize=10,
    )  # fmt: skip
    return axes


def _draw_slots(page: Page, trace: MemoryTrace, top: float) -> Axes:
    title = (
        "Slots that erase-and-add wrote to"
        if trace.erase_add
        else "How much of each memory token was kept"
    )
    axes = _chart(page, top, title)
    brightest = trace.slots.max() if trace.erase_add else 1.0
    shown = axes.imshow(
        trace.slots.T,
        aspect="auto",
        cmap="cividis",
        vmin=0,
        vmax=brightest,
        interpolation="nearest",
    )
    axes.set_ylabel("memory token", fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    bar = page.figure.colorbar(shown, cax=page.axes(LEFT + CONTENT + 0.25, top, 0.2, CHART))
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))
    return axes


def _draw_norms(page: Page, trace: MemoryTrace, top: float) -> Axes:
    axes = _chart(page, top, "Size of the memory: Euclidean norm of its tokens")
    ticks, norms = np.arange(trace.num_ticks), trace.norms
    axes.fill_between(
        ticks, norms.min(axis=1), norms.max(axis=1), color=MEMORY_COLOUR, alpha=0.25, lw=0,
        label="smallest to largest",
    )  # fmt: skip
    axes.plot(ticks, norms.mean(axis=1), color=MEMORY_COLOUR, lw=2, label="mean")
    axes.set_ylim(bottom=0)
    axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, borderaxespad=0.2, fontsize=10
    )
    return axes


def _chart(page: Page, top: float, title: str) -> Axes:
    axes = page.axes(LEFT, top, CONTENT, CHART)
    axes.set_title(title, loc="left", fontsize=11, weight="bold", color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _align(axes: Axes, trace: MemoryTrace, ticks: list[int], *, last: bool) -> None:
    """Align the time axis with the images above, and mark their ticks by dotted lines."""
    step = (ticks[-1] - ticks[0]) / max(len(ticks) - 1, 1) or 1.0
    axes.set_xlim(ticks[0] - step / 2, ticks[-1] + step / 2)
    times = [f"{tick}\n{tick / trace.spec.rate_hz:.1f} s" for tick in ticks]
    axes.set_xticks(ticks, times if last else [""] * len(ticks))
    axes.set_xlabel("tick and time" if last else "")
    for tick in ticks:
        axes.axvline(tick, color=RULE, lw=0.8, ls=(0, (1, 3)))


def _mark_moments(axes: Axes, trace: MemoryTrace, *, named: bool) -> None:
    """Mark the ticks at which something happened by solid lines, named above the title of the chart."""
    moments = trace.seen.moments
    for number, (name, tick) in enumerate(moments.items(), start=1):
        axes.axvline(tick - 0.5, color=INK, lw=1.4)
        if named:
            side = "left" if number == len(moments) else "right"  # keeps two names apart
            place = (tick - 0.5, 1.17)
            axes.annotate(name, place, xycoords=axes.get_xaxis_transform(), fontsize=10, ha=side)
