"""`ttm data play`: an episode as a film."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import imageio
import numpy as np
import numpy.typing as npt
from PIL import Image
from tyro.conf import Positional, arg

from ttm.datasets.console import track
from ttm.datasets.frames import Frames
from ttm.datasets.hdf5 import one_line
from ttm.datasets.reader import EpisodeReader, Floats
from ttm.policy.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILMS = (".mp4", ".webp")
HOLD_S = 1.5  # how long the last frame stays, so that one sees how the episode ended
BLOCK = 32  # frames of each camera that are read at a time
LATEST_S = 2**32  # no capture time is later; it is in the year 2106
REPEATS = 3  # of each frame of an .mp4: some browsers stutter below 10 frames a second

DPI = 100
WIDTH, HEADER, CAMERAS, CHART, FOOTER = 9.6, 0.5, 3.0, 0.85, 0.45
"""The width of a picture, and the heights of its title, the row of cameras, each chart, and the axis."""
FEW_LABELS, MOST_LABELS = 4, 10
"""Legends of more values have two columns; vectors of still more get none."""
LABEL = 28  # the longest label, in characters, of a legend with one column


@dataclass(frozen=True)
class DataPlayCommand:
    """Write an episode as a film in real time: its cameras, and below them what it did and felt.

    Each part of the action and each vector of proprioception has a chart over the ticks, in which a line
    marks the tick that is shown. A dashed line is what was executed in place of the action.

    For example:
      ttm data play my_episodes/episode_00003.hdf5
      ttm data play week.hdf5 --demo demo_12 --out demo_12.webp
    """

    episode: Annotated[Positional[Path], arg(metavar="EPISODE")]
    """An HDF5 file."""
    demo: str | None = None
    """Which episode of the file, such as demo_3, if it has several."""
    out: Path | None = None
    """The film: .mp4 (H.264, which every browser plays), or .webp (a moving picture for pages). None takes
    the name of the episode with .mp4, in this folder."""

    def run(self) -> int:
        """Write the film and print its path; return the exit code."""
        episode = EpisodeReader.open(self.episode, self.demo)
        suffix = "" if self.demo is None else f"_{self.demo}"
        target = self.out or Path(f"{self.episode.stem}{suffix}.mp4")
        try:
            with Film(target, episode.spec.rate_hz) as film:
                for frame in track(film_frames(episode), "drawing", total=episode.num_samples):
                    film.show(frame)
        except OSError as error:
            raise UserError(
                f"cannot write {target} ({one_line(error.strerror or error)}); give another --out"
            ) from error
        judged = {True: "success", False: "failure", None: "not judged"}[episode.success]
        print(f"{target}: {episode.num_samples} ticks, {judged}: {episode.instruction}")
        return 0


SomeFilm = TypeVar("SomeFilm", bound="Film")


class Film:
    """Writes a film of an episode; a context manager.

    An episode that is broken off by an exception leaves no file.
    """

    def __init__(self, path: Path, rate_hz: float):
        """path: its name ends in one of `FILMS`, or else `UserError`. rate_hz: ticks in a second."""
        if path.suffix not in FILMS:
            raise UserError(f"cannot film to {path}; give a path that ends in {' or '.join(FILMS)}")
        self._path, self._rate_hz = path, rate_hz
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._mp4: Any = None
        self._pictures: list[Image.Image] = []  # those of a .webp
        self._last: Frames | None = None

    def __enter__(self: SomeFilm) -> SomeFilm:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial.touch()  # FFmpeg does not say why it cannot write
        if self._path.suffix == ".mp4":
            self._mp4 = imageio.get_writer(
                self._partial, fps=REPEATS * self._rate_hz, codec="libx264", pixelformat="yuv420p",
                quality=None, macro_block_size=2,
                output_params=["-crf", "27", "-preset", "veryfast", "-movflags", "+faststart"],
            )  # fmt: skip
        return self

    def show(self, frame: Frames) -> None:
        """Add one tick. frame: (H, W, 3) uint8, H and W even."""
        self._last = frame
        if self._mp4 is None:
            self._pictures.append(Image.fromarray(frame))
            return
        for _ in range(REPEATS):
            self._mp4.append_data(frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_whole = kind is None and self._last is not None
        try:
            if is_whole and self._last is not None:
                for _ in range(round(HOLD_S * self._rate_hz)):
                    self.show(self._last)
            if self._mp4 is not None:
                self._mp4.close()
            elif is_whole:
                first, *others = self._pictures
                first.save(
                    self._partial, save_all=True, append_images=others,
                    duration=round(1000 / self._rate_hz), loop=0, quality=75, method=6,
                )  # fmt: skip
            if is_whole:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Series:
    """A vector over the ticks.

    values: (T, K); executed: (T, K), what was carried out in place of an action, or None.
    """

    title: str
    labels: Sequence[str]
    values: Floats
    executed: Floats | None = None


def _series(episode: EpisodeReader) -> list[Series]:
    """Return each part of the action, and then each vector of proprioception."""
    actions, executed = episode.actions, episode.executed_actions
    found = []
    for part in episode.spec.actions:
        where = episode.spec.action_slices[part.name]
        labels = [str(place) for place in range(part.size)] if part.size > 1 else [part.name]
        done = executed[:, where] if (executed[:, where] != actions[:, where]).any() else None
        title = f"action: {part.name}" + (f" ({part.unit})" if part.unit else "")
        found.append(Series(title, labels, actions[:, where], done))
    for vector in episode.spec.proprioception:
        values = episode.proprioception(vector.name)
        found.append(Series(vector.name, vector.labels, values))
    return found


def _camera_frames(episode: EpisodeReader) -> Iterator[dict[str, Frames]]:
    """Yield the frame of each camera, (H, W, 3) uint8, for each tick."""
    names = [camera.name for camera in episode.spec.cameras]
    for start in range(0, episode.num_samples, BLOCK):
        stop = min(start + BLOCK, episode.num_samples)
        frames = {name: episode.frames(name, start, stop) for name in names}
        for place in range(stop - start):
            yield {name: frames[name][place] for name in names}


def capture_times_s(episode: EpisodeReader) -> npt.NDArray[np.float64]:
    """Return the capture time of each tick, (T,), in seconds; by the rate if it was not recorded.

    Raises `UserError` for another number of times than of ticks, and for times beyond `LATEST_S`.
    """
    stored = episode.timestamps
    if stored is None:
        return np.arange(episode.num_samples) / episode.spec.rate_hz
    if stored.shape != (episode.num_samples,):
        raise UserError(
            f"{episode.path}: {episode.num_samples} ticks have {stored.size} timestamps; mend it"
        )
    wrong = np.flatnonzero(~((stored >= 0) & (stored <= LATEST_S)))
    if wrong.size:
        raise UserError(
            f"{episode.path}: the timestamp of tick {wrong[0]} is {stored[wrong[0]]:g}, no time in s"
        )
    return stored


def film_frames(episode: EpisodeReader) -> Iterator[Frames]:
    """Yield a picture (H, W, 3) uint8 for each tick, with H and W even, as H.264 needs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = _series(episode)
    height = HEADER + (CAMERAS if episode.spec.cameras else 0) + CHART * len(charts) + FOOTER
    figure = Figure(figsize=(WIDTH, round(height * DPI / 2) * 2 / DPI), dpi=DPI)
    canvas = FigureCanvasAgg(figure)
    clock = _write_header(figure, episode)
    images = _place_cameras(figure, episode)
    cursors = _place_charts(figure, charts)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    last, rate_hz = episode.num_samples - 1, episode.spec.rate_hz
    for tick, frames in enumerate(_camera_frames(episode)):
        clock.set_text(f"tick {tick} of {last}    {tick / rate_hz:.1f} s")
        for name, frame in frames.items():
            images[name].set_data(frame)
        for cursor in cursors:
            cursor.set_xdata([tick, tick])
        canvas.restore_region(still)
        for artist in (clock, *images.values(), *cursors):
            figure.draw_artist(artist)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _write_header(figure: Figure, episode: EpisodeReader) -> Any:
    """Write the instruction and the success; return the text that shows the tick."""
    outcomes = {True: ("success", "tab:green"), False: ("failure", "tab:red"), None: ("", "black")}
    judged, colour = outcomes[episode.success]
    title = shorten(episode.instruction or "(no instruction)", 70, placeholder=" …")
    top = 1 - HEADER / 2 / figure.get_figheight()
    figure.text(0.01, top, title, size=13, weight="bold", va="center")
    figure.text(0.99, top, judged, size=12, color=colour, ha="right", va="center")
    return figure.text(0.89, top, "", size=11, animated=True, ha="right", va="center")


def _place_cameras(figure: Figure, episode: EpisodeReader) -> dict[str, Any]:
    """Place the cameras in a row; return their images."""
    height, images = figure.get_figheight(), {}
    bottom, width = 1 - (HEADER + CAMERAS) / height, 1 / max(len(episode.spec.cameras), 1)
    for place, camera in enumerate(episode.spec.cameras):
        left = place * width + 0.01
        axes = figure.add_axes((left, bottom, width - 0.02, (CAMERAS - 0.25) / height))
        axes.set_axis_off()
        axes.set_title(camera.name, size=9, pad=3)
        blank = np.zeros((camera.height, camera.width, 3), np.uint8)
        images[camera.name] = axes.imshow(blank, interpolation="nearest", animated=True)
    return images


def _place_charts(figure: Figure, charts: Sequence[Series]) -> list[Any]:
    """Place the charts below each other; return the lines that mark the tick."""
    height, cursors = figure.get_figheight(), []
    for place, series in enumerate(charts):
        below = len(charts) - 1 - place
        bottom = (FOOTER + CHART * below) / height
        axes = figure.add_axes((0.06, bottom, 0.74, (CHART - 0.28) / height))
        _draw_chart(axes, series)
        axes.tick_params(labelbottom=not below)
        axes.set_xlabel("" if below else "tick", size=8)
        cursors.append(axes.axvline(0, color="black", lw=1, animated=True))
    return cursors


def _draw_chart(axes: Axes, series: Series) -> None:
    """Draw a series over the ticks, and the labels of its lines at the right."""
    few = len(series.labels) <= FEW_LABELS
    for place, label in enumerate(series.labels):
        short = label[: LABEL if few else LABEL // 2]
        (line,) = axes.plot(series.values[:, place], lw=1.2, label=short)
        if series.executed is not None:
            axes.plot(series.executed[:, place], lw=1, ls="--", color=line.get_color())
    axes.set_xlim(-0.5, len(series.values) - 0.5)
    axes.set_title(series.title, loc="left", size=8, weight="bold", pad=2)
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="y", nbins=3)
    axes.locator_params(axis="x", nbins=12, integer=True)
    if len(series.labels) <= MOST_LABELS:
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.15), fontsize=6, frameon=False,
            ncols=1 if few else 2, handlelength=1, columnspacing=0.8,
            labelspacing=0.2,
        )  # fmt: skip
