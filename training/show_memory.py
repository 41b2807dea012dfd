"""`ttm show memory`: a picture and a video of what a memory reads and writes in an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from tyro.conf import Positional

from ttm.datasets.console import track
from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.frames import Frames
from ttm.datasets.layout import DEFAULT_INSTRUCTION
from ttm.datasets.reader import EpisodeReader
from ttm.datasets.windows import resized_frames
from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.memory_attention import Which
from ttm.policy.policy import Policy
from ttm.policy.spec import PolicySpec, checkpoint_path
from ttm.sim.memory_picture import (
    CHARTS_TOP,
    DPI,
    GO,
    HEADER,
    HEIGHT,
    WIDTH,
    MemoryTrace,
    SeenEpisode,
    draw_charts,
    draw_strip,
    mark_slots,
    trace_memory,
)
from ttm.sim.memory_picture import GAP as MARK_GAP
from ttm.sim.video import EpisodeVideo
from ttm.training.console import make_folder

VERBS: Mapping[Which | None, str] = {None: "seen", "read": "read", "write": "written"}
GAP = 0.06
"""Inches between two images of the video."""


@dataclass(frozen=True)
class ShowCommand:
    """Show what a policy's memory reads and writes over a recorded episode (ttm show memory).

    The episode is replayed with the memory kept from tick to tick, as on the robot; the previous
    action that the policy sees is its own. OUT receives a picture and a video. Both show the camera
    images under a heat map of the places that were written into the memory, and over time what was
    written, which slot was, and how the commands change once the memory is erased. Of a sight memory
    they show when its gates open, what was written there, and where that is found.
    Cue, gap and go are marked where the robot was held, as in the memory tasks.

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
    """Number of ticks of which the picture shows the image, from the first to the last."""

    def run(self) -> int:
        """Write both files; return the exit code."""
        require_at_least(1, options(self, "columns"))
        policy, _ = load_checkpoint(checkpoint_path(self.checkpoint))
        episode = find_episode(self.episode, policy.spec, self.checkpoint)
        file = Path(checkpoint_path(self.checkpoint))
        name = f"{episode.path.stem}/{episode.name}, checkpoint {self.checkpoint}"
        name += f" ({file.name})" if file.name != Path(self.checkpoint).name else ""
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
    spec.require_robot(episodes.spec, ours=checkpoint, theirs=path)
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


def held_moments(observations: Mapping[str, npt.NDArray[Any]], spec: PolicySpec) -> dict[str, int]:
    """Return when the cue was hidden, and when the robot might act, if it was held at first.

    While it is held nothing moves to the bit, so that what changes in the image then is the cue.
    """
    vectors = [observations[vector.name] for vector in spec.proprioception]
    ticks = len(vectors[0]) if vectors else 0
    go = next((t for t in range(1, ticks) if any((v[t] != v[0]).any() for v in vectors)), 1) - 1
    if go < 1 or not spec.cameras:
        return {}
    frames = observations[spec.cameras[0].name]
    # At "go" the image may change, too.
    changes = [t for t in range(1, go) if (frames[t] != frames[t - 1]).any()]
    return ({MARK_GAP: changes[-1]} if changes else {}) | {GO: go}


def trace_episode(policy: Policy, episode: EpisodeReader, title: str) -> MemoryTrace:
    """Replay the observations of `episode`, with the actions that were executed, as in training."""
    instruction = episode.instruction or DEFAULT_INSTRUCTION
    observations: dict[str, npt.NDArray[Any]] = {}
    for camera in policy.spec.cameras:
        # All at once, so that the file is opened once.
        observations[camera.name] = resized_frames(episode.frames(camera.name), camera)
    for vector in policy.spec.proprioception:
        observations[vector.name] = episode.proprioception(vector.name)
    # The embedding of the episode serves if the policy needs it, and if it is of its language model.
    known = instruction in policy.known_instructions
    fits = episode.language_model in (None, policy.config.language_model)
    embedding = episode.language_embedding if fits and not known else None
    moments = held_moments(observations, policy.spec)
    executed = episode.executed_actions
    seen = SeenEpisode(title, instruction, observations, embedding, moments, executed)
    return trace_memory(policy, seen, each=partial(track, description="replaying"))


def draw_frames(trace: MemoryTrace) -> Iterator[Frames]:
    """Yield a frame (H, W, 3) uint8 for each tick, with H and W even, as H.264 needs them.

    Each shows what all cameras see, under the heat of what was read and written, above the charts.
    """
    tiles = [(camera, which) for camera in trace.frames for which in (None, *trace.directions)]
    side = min((WIDTH - 0.4) / len(tiles), 3.0) - GAP
    top = HEADER + side + 0.4
    page, charts = draw_charts(trace, round(top + HEIGHT - CHARTS_TOP, 1), top)
    clock = page.text(WIDTH - 0.2, 0.14, "", 14, ha="right")
    pixels, images = (round(side * DPI),) * 2, []
    for column, (camera, which) in enumerate(tiles):
        left = 0.2 + column * (side + GAP)
        blank = np.zeros((*pixels, 3), np.uint8)
        images.append(page.image(left, HEADER, side, side, blank))
        title = f"{camera}, {VERBS[which]}"
        page.text(left + side / 2, HEADER - 0.03, title, 11, ha="center", va="bottom")
    cursors = [axes.axvline(0, color="black", lw=2) for axes in charts]
    artists = [clock, *images, *cursors]
    for artist in artists:
        artist.set_animated(True)  # leaves it out of what is drawn once
    page.canvas.draw()
    still = page.canvas.copy_from_bbox(page.figure.bbox)
    for tick in track(range(trace.num_ticks), "drawing"):
        clock.set_text(f"tick {tick} of {trace.num_ticks - 1}")
        for image, (camera, which) in zip(images, tiles, strict=True):
            image.set_data(trace.pixels(camera, which, tick, pixels))
        for cursor in cursors:
            cursor.set_xdata([tick, tick])
        page.canvas.restore_region(still)
        marks = mark_slots(images[0].axes, trace, tick)
        for artist in [*artists, *marks]:
            page.figure.draw_artist(artist)
        for mark in marks:
            mark.remove()
        yield np.array(page.canvas.buffer_rgba())[..., :3]
