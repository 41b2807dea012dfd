"""The pictures of an episode's film: what its cameras saw, above charts of action and proprioception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.frames import Frames
from ttm.datasets.play.ticks import Series, action_series, camera_frames, vector_series

DPI = 100
WIDTH, HEADER, CAMERAS, CHART, FOOTER = 9.6, 0.5, 3.0, 0.85, 0.45
"""The width of a picture, and the heights of its title, the row of cameras, each chart, and the axis."""

FEW_LABELS, MOST_LABELS = 4, 10
"""Legends of more values have two columns; vectors of still more get none."""

LABEL = 28
"""The longest label, in characters, of a legend with one column."""


def film_frames(episode: EpisodeReader) -> Iterator[Frames]:
    """Yield a picture (H, W, 3) uint8 for each tick, with H and W even, as H.264 needs.

    The page is drawn once; then only what changes is drawn again for each tick.
    """
    charts = _charts(episode)
    cameras = CAMERAS if episode.spec.cameras else 0.0
    height = HEADER + cameras + CHART * len(charts) + FOOTER
    figure = Figure(figsize=(WIDTH, round(height * DPI / 2) * 2 / DPI), dpi=DPI)
    canvas = FigureCanvasAgg(figure)
    page = _Page(figure, episode, charts)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    for tick, frames in enumerate(camera_frames(episode)):
        page.show(tick, frames)
        canvas.restore_region(still)
        for artist in page.changing:
            figure.draw_artist(artist)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


class _Page:
    """The figure, and its artists that change from tick to tick."""

    def __init__(self, figure: Figure, episode: EpisodeReader, charts: Sequence[_Chart]) -> None:
        self._last, self._rate_hz = episode.num_samples - 1, episode.spec.rate_hz
        height = figure.get_figheight()
        judged, colour = {
            True: ("success", "tab:green"),
            False: ("failure", "tab:red"),
            None: ("", "black"),
        }[episode.success]
        title = shorten(episode.instruction or "(no instruction)", 70, placeholder=" …")
        top = 1 - HEADER / 2 / height
        figure.text(0.01, top, title, size=13, weight="bold", va="center")
        figure.text(0.99, top, judged, size=12, color=colour, ha="right", va="center")
        self._clock = figure.text(0.89, top, "", size=11, ha="right", va="center", animated=True)
        self._images = _place_cameras(figure, episode)
        self._cursors = _place_charts(figure, charts)

    @property
    def changing(self) -> list[Any]:
        """The artists that change."""
        return [self._clock, *self._images.values(), *self._cursors]

    def show(self, tick: int, frames: dict[str, Frames]) -> None:
        """Show a tick."""
        self._clock.set_text(f"tick {tick} of {self._last}    {tick / self._rate_hz:.1f} s")
        for name, frame in frames.items():
            self._images[name].set_data(frame)
        for cursor in self._cursors:
            cursor.set_xdata([tick, tick])


class _Chart:
    """A chart of one series over the ticks."""

    def __init__(self, title: str, series: Series) -> None:
        self._title = f"{title} ({series.unit})" if series.unit else title
        self._series = series

    def draw(self, axes: Axes) -> None:
        """Draw all lines, and their labels at the right."""
        series = self._series
        few = len(series.labels) <= FEW_LABELS
        for place, label in enumerate(series.labels):
            short = label[: LABEL if few else LABEL // 2]
            (line,) = axes.plot(series.values[:, place], lw=1.2, label=short)
            if series.executed is not None:
                axes.plot(series.executed[:, place], lw=1, ls="--", color=line.get_color())
        axes.set_xlim(-0.5, len(series.values) - 0.5)
        axes.set_title(self._title, loc="left", size=8, weight="bold", pad=2)
        axes.tick_params(labelsize=7)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        if len(series.labels) <= MOST_LABELS:
            axes.legend(
                loc="upper left", bbox_to_anchor=(1.0, 1.15), fontsize=6, frameon=False,
                ncols=1 if few else 2, handlelength=1, columnspacing=0.8,
                labelspacing=0.2,
            )  # fmt: skip


def _charts(episode: EpisodeReader) -> list[_Chart]:
    """Return a chart for each part of the action and each vector."""
    actions = [_Chart(f"action: {each.name}", each) for each in action_series(episode)]
    return actions + [_Chart(each.name, each) for each in vector_series(episode)]


def _place_cameras(figure: Figure, episode: EpisodeReader) -> dict[str, Any]:
    """Place the cameras in a row; return their images."""
    height, images = figure.get_figheight(), {}
    cameras = episode.spec.cameras
    for place, camera in enumerate(cameras):
        rectangle = (
            place / len(cameras) + 0.01,
            1 - (HEADER + CAMERAS) / height,
            1 / len(cameras) - 0.02,
            (CAMERAS - 0.25) / height,
        )
        axes = figure.add_axes(rectangle)
        axes.set_axis_off()
        axes.set_title(camera.name, size=9, pad=3)
        blank = np.zeros((camera.height, camera.width, 3), np.uint8)
        images[camera.name] = axes.imshow(blank, interpolation="nearest", animated=True)
    return images


def _place_charts(figure: Figure, charts: Sequence[_Chart]) -> list[Any]:
    """Place the charts below each other; return the lines that mark the tick."""
    height, cursors = figure.get_figheight(), []
    for place, chart in enumerate(charts):
        bottom = (FOOTER + CHART * (len(charts) - 1 - place)) / height
        axes = figure.add_axes((0.06, bottom, 0.74, (CHART - 0.28) / height))
        chart.draw(axes)
        last = place == len(charts) - 1
        axes.tick_params(labelbottom=last)
        axes.set_xlabel("tick" if last else "", size=8)
        cursors.append(axes.axvline(0, color="black", lw=1, animated=True))
    return cursors
