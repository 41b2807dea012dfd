"""`ttm show memory`: a picture and a video of what a memory reads and writes in an episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator
from tyro.conf import Positional

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.frames import Frames, resize_frame
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.reader import EpisodeReader
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.memory_attention import Which
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec, checkpoint_path
from ttm.sim.memory_picture import (
    DPI,
    TITLES,
    VERBS,
    MemoryTrace,
    Page,
    SeenEpisode,
    draw_strip,
    enlarged,
    heat_over,
    source_colours,
    source_label,
    stack_shares,
    trace_memory,
)
from ttm.sim.video import EpisodeVideo
from ttm.training.console import make_folder

WIDTH = 14.4
HEADER, IMAGES, GAP, TIMELINE, FOOTER = 1.0, 4.6, 0.06, 0.9, 0.6
"""Heights of the title, the block of camera images, the space between images, each chart over time,
its axis."""
IMAGES_LEFT, IMAGES_WIDTH = 0.9, 6.6
BARS_LEFT, BARS_WIDTH = 9.2, 1.9
MATRIX_LEFT, MATRIX = 12.0, 2.1


@dataclass(frozen=True)
class ShowCommand:
    """Show what a policy's memory reads and writes over a recorded episode (ttm show memory).

    The episode is replayed with the memory kept from tick to tick, as on the robot; the previous
    action that the policy sees is its own. OUT receives a picture and a video. Both show the camera
    images under a heat map of the places that the policy read and wrote into its memory, and over
    time how much it read and wrote from every source.

    For example:
      ttm collect --episodes 1 --out demos
      ttm show memory --episode demos
      ttm show memory --checkpoint runs/mine/best.safetensors --episode recorded.hdf5:demo_3 --out pictures
    """

    what: Annotated[Literal["memory"], Positional]
    """What to show."""
    episode: str
    """An HDF5 file, a folder of them or a glob in quotes; its first episode is shown. For another,
    add a colon and its name (recorded.hdf5:demo_3) or its number, counted from 0 (demos:7)."""
    checkpoint: str = "shipped"
    """A .safetensors file whose core is a Token Turing Machine, or `shipped`, the policy that comes
    with the project. The episode must be of its robot; frames of another size are resized."""
    out: Path = Path("memory")
    """Folder for the picture (.png) and the video (.mp4), which are named after the episode."""
    columns: int = 8
    """Number of ticks in the picture, evenly spread from the first to the last."""

    def run(self) -> int:
        """Write both files; return the exit code."""
        require_at_least(1, options(self, "columns"))
        policy, _ = load_checkpoint(checkpoint_path(self.checkpoint))
        episode = find_episode(self.episode, policy.spec, self.checkpoint)
        name = f"{episode.path.stem}/{episode.name}, policy {Path(self.checkpoint).stem}"
        trace = trace_episode(policy, episode, name)
        picture = make_folder(self.out) / f"{episode.path.stem}_{episode.name}.png"
        draw_strip(trace, self.columns).savefig(picture)
        video = picture.with_suffix(".mp4")
        with EpisodeVideo(video, trace.spec.rate_hz) as film:
            for frame in draw_frames(trace):
                film.show(frame)
        print(f"picture: {picture}\nvideo: {video}")
        return 0


def find_episode(wanted: str, spec: PolicySpec, checkpoint: str) -> EpisodeReader:
    """Return the episode that `wanted` names as `PATH`, `PATH:NAME` or `PATH:NUMBER`.

    spec: the spec of the policy `checkpoint`. Files without a spec get the one inferred from all of
    PATH, as in training. Raises `UserError` if there is no such episode or more than one, or if the
    episode is of another robot than the policy.
    """
    path, colon, which = wanted.rpartition(":")
    if not colon or Path(wanted).exists():
        path, which = wanted, ""
    episodes = open_dataset(path, like=spec)
    recorded = {camera.name for camera in episodes.spec.cameras}
    needed = {camera.name for camera in spec.cameras}
    # Cameras that the policy does not use are left out, as in training.
    shown = replace(episodes.spec, cameras=spec.cameras) if recorded >= needed else episodes.spec
    spec.require_compatible(shown, ours=checkpoint, theirs=path)
    return _choose(episodes, which or "0")


def _choose(episodes: EpisodeDataset, which: str) -> EpisodeReader:
    if which.isdecimal():
        if int(which) >= len(episodes):
            raise UserError(
                f"{episodes.source} has {len(episodes)} episodes and none of number {which}"
            )
        return episodes[int(which)]
    found = [episode for episode in episodes if episode.name == which]
    if len(found) != 1:
        names = ", ".join(dict.fromkeys(episode.name for episode in episodes))
        raise UserError(
            f"{episodes.source} has {len(found) or 'no'} episodes of the name '{which}' "
            f"(it has: {names}); give the file that it is in, or its number, counted from 0"
        )
    return found[0]


def trace_episode(policy: Policy, episode: EpisodeReader, title: str) -> MemoryTrace:
    """Replay the observations of `episode`, with the actions that were executed, as in training."""
    instruction = episode.instruction or DEFAULT_INSTRUCTION
    observations: dict[str, npt.NDArray[Any]] = {}
    for camera in policy.spec.cameras:
        size = camera.height, camera.width
        frames = episode.frames(camera.name)  # all at once, so that the file is opened once
        observations[camera.name] = np.stack([resize_frame(each, *size) for each in frames])
    for vector in policy.spec.proprioception:
        observations[vector.name] = episode.proprioception(vector.name)
    # The embedding of the episode serves if the policy needs it, and if it is of its language model.
    known = instruction in policy.known_instructions
    fits = episode.language_model in (None, policy.config.language_model)
    embedding = episode.language_embedding if fits and not known else None
    seen = SeenEpisode(
        title, instruction, observations, embedding, executed=episode.executed_actions
    )
    return trace_memory(policy, seen, each=partial(track, description="replaying"))


def draw_frames(trace: MemoryTrace) -> Iterator[Frames]:
    """Yield a frame (H, W, 3) uint8 for each tick, with H and W even, as H.264 needs."""
    timelines = len(trace.directions)
    height = HEADER + IMAGES + 0.5 + timelines * (TIMELINE + 0.3) + FOOTER
    page = Page(WIDTH, round(height * DPI / 2) * 2 / DPI)
    scene = _Scene(page, trace)
    for artist in scene.artists:
        artist.set_animated(True)  # leaves it out of what is drawn once
    page.canvas.draw()
    still = page.canvas.copy_from_bbox(page.figure.bbox)
    for tick in track(range(trace.num_ticks), "drawing"):
        scene.show(tick)
        page.canvas.restore_region(still)
        for artist in scene.artists:
            page.figure.draw_artist(artist)
        yield np.asarray(page.canvas.buffer_rgba())[..., :3].copy()


class _Scene:
    """The figure, and its artists that change from tick to tick."""

    def __init__(self, page: Page, trace: MemoryTrace) -> None:
        self._trace = trace
        instruction = shorten(trace.seen.instruction, 70, placeholder=" …")
        page.text(0.25, 0.18, f"“{instruction}”", 17, weight="bold")
        self._clock = page.text(WIDTH - 0.25, 0.2, "", 15, ha="right")
        self._images = _place_images(page, trace)
        self._bars = [_Bars(page, trace, which, n) for n, which in enumerate(trace.directions)]
        self._matrix = _place_matrix(page, trace)
        self._cursors = _place_timelines(page, trace)
        images = [image for image, _ in self._images.values()]
        bars = [artist for bars in self._bars for artist in bars.artists]
        self.artists: list[Any] = [self._clock, *images, *bars, self._matrix, *self._cursors]
        """Those that change."""

    def show(self, tick: int) -> None:
        trace = self._trace
        seconds = tick / trace.spec.rate_hz
        self._clock.set_text(f"tick {tick} of {trace.num_ticks - 1}    {seconds:.1f} s")
        for (camera, which), (image, size) in self._images.items():
            image.set_data(_pixels(trace, camera, which, tick, size))
        for bars in self._bars:
            bars.show(tick)
        self._matrix.set_data(trace.matrices[tick])
        for cursor in self._cursors:
            cursor.set_xdata([tick, tick])


class _Bars:
    """Bars for the shares of all sources at one tick, with their values."""

    def __init__(self, page: Page, trace: MemoryTrace, which: Which, place: int) -> None:
        shares, colours = trace.shares[which], source_colours(trace)
        height = (IMAGES - 0.5) / 2
        axes = page.axes(BARS_LEFT, HEADER + place * (height + 0.5), BARS_WIDTH, height)
        bars = axes.barh(
            [source_label(source, which, trace) for source in shares],
            np.ones(len(shares)),
            color=[colours[source] for source in shares],
            height=0.72,
        )
        values = [axes.text(0, row, "", fontsize=10, va="center") for row in range(len(shares))]
        self._rows = list(zip(bars, values, shares.values(), strict=True))
        self.artists: list[Any] = [*bars, *values]
        axes.set(xlim=(0, 1), xticks=[])
        axes.invert_yaxis()
        axes.set_title(TITLES[which], loc="left", fontsize=12, weight="bold")
        axes.tick_params(length=0, labelsize=10)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)

    def show(self, tick: int) -> None:
        for bar, text, share in self._rows:
            bar.set_width(share[tick])
            text.set_text(f"{share[tick]:.0%}")
            text.set_x(min(share[tick] + 0.03, 0.85))


def _pixels(
    trace: MemoryTrace, camera: str, which: Which | None, tick: int, size: tuple[int, int]
) -> Frames:
    frame = trace.frames[camera][tick]
    if which is None:
        return enlarged(frame, size)
    return heat_over(frame, trace.maps[which][camera][tick], trace.brightest, which, size)


def _place_images(
    page: Page, trace: MemoryTrace
) -> dict[tuple[str, Which | None], tuple[Any, tuple[int, int]]]:
    columns = (None, *trace.directions)
    cell = (IMAGES_WIDTH / len(columns) - GAP, IMAGES / len(trace.frames) - GAP)
    images, top = {}, HEADER
    for camera, frames in trace.frames.items():
        scale = min(cell[0] / frames.shape[2], cell[1] / frames.shape[1])
        width, height = frames.shape[2] * scale, frames.shape[1] * scale
        size = (round(height * DPI), round(width * DPI))
        page.text(
            IMAGES_LEFT - 0.12, top + height / 2, camera, 12, ha="right", va="center", weight="bold"
        )
        for column, which in enumerate(columns):
            left = IMAGES_LEFT + column * (cell[0] + GAP) + (cell[0] - width) / 2
            image = page.image(left, top, width, height, _pixels(trace, camera, which, 0, size))
            images[camera, which] = (image, size)
        top += height + GAP
    for column, which in enumerate(columns):
        middle = IMAGES_LEFT + column * (cell[0] + GAP) + cell[0] / 2
        title = "seen" if which is None else VERBS[which]
        page.text(middle, HEADER - 0.07, title, 12, ha="center", va="bottom")
    return images


def _place_matrix(page: Page, trace: MemoryTrace) -> Any:
    axes = page.axes(MATRIX_LEFT, HEADER, MATRIX, MATRIX)
    brightest = float(np.quantile(trace.matrices, 0.999)) or 1.0  # 0 where nothing is ever kept
    looks: dict[str, Any] = {"aspect": "auto", "cmap": "cividis", "interpolation": "nearest"}
    shown = axes.imshow(trace.matrices[0], vmin=0, vmax=brightest, **looks)
    title, new, old = (
        ("Slots written to", "vector", "memory token")
        if trace.erase_add
        else ("Memory kept", "new memory token", "old memory token")
    )
    axes.set_title(title, loc="left", fontsize=12, weight="bold")
    axes.set_xlabel(old, fontsize=10)
    axes.set_ylabel(new, fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    return shown


def _place_timelines(page: Page, trace: MemoryTrace) -> list[Any]:
    """Place charts of the shares over time; return the lines that mark the current tick."""
    cursors = []
    for place, which in enumerate(trace.directions):
        top = HEADER + IMAGES + 0.5 + place * (TIMELINE + 0.3)
        last = which == trace.directions[-1]
        axes = page.axes(IMAGES_LEFT, top, WIDTH - IMAGES_LEFT - 0.35, TIMELINE)
        stack_shares(axes, trace, which)
        axes.set_xlim(-0.5, trace.num_ticks - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.tick_params(labelbottom=last)
        axes.set_xlabel("tick" if last else "")
        axes.set_title(TITLES[which], loc="left", fontsize=10, weight="bold", pad=3)
        cursors.append(axes.axvline(0, color="black", lw=2))
    return cursors
