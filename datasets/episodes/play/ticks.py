"""What an episode shows tick by tick: frames, capture times, and its named vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttm.datasets.episode_reader import EpisodeReader, Floats
from ttm.datasets.frames import Frames
from ttm.policy.errors import UserError

BLOCK = 32
"""So many frames of each camera are read at a time."""

LATEST_S = 2**32
"""Unix time in seconds ends there in MCAP's messages; it is in the year 2106."""


@dataclass(frozen=True)
class Series:
    """A vector over the ticks.

    values: (T, K); executed: (T, K), what was carried out in place of an action, or None.
    """

    name: str
    unit: str
    labels: Sequence[str]
    values: Floats
    executed: Floats | None = None


def action_series(episode: EpisodeReader) -> list[Series]:
    """Return each part of the action."""
    actions, executed = episode.actions, episode.executed_actions
    found = []
    for part in episode.spec.actions:
        where = episode.spec.action_slices[part.name]
        labels = [str(place) for place in range(part.size)] if part.size > 1 else [part.name]
        different = (executed[:, where] != actions[:, where]).any()
        done = executed[:, where] if different else None
        found.append(Series(part.name, part.unit, labels, actions[:, where], done))
    return found


def vector_series(episode: EpisodeReader) -> list[Series]:
    """Return each vector of proprioception."""
    return [
        Series(vector.name, "", vector.labels, episode.proprioception(vector.name))
        for vector in episode.spec.proprioception
    ]


def camera_frames(episode: EpisodeReader) -> Iterator[dict[str, Frames]]:
    """Yield the frame of each camera, (H, W, 3) uint8, for each tick."""
    names = [camera.name for camera in episode.spec.cameras]
    for start in range(0, episode.num_samples, BLOCK):
        stop = min(start + BLOCK, episode.num_samples)
        frames = {name: episode.frames(name, start, stop) for name in names}
        for place in range(stop - start):
            yield {name: frames[name][place] for name in names}


def capture_times_s(episode: EpisodeReader) -> npt.NDArray[np.float64]:
    """Return the capture time of each tick, (T,), in seconds; by the rate if it was not recorded.

    Raises `UserError` if their number is another than that of the ticks, and for times that are not
    from 0 to `LATEST_S`, which neither viewer takes.
    """
    stored = episode.timestamps
    if stored is None:
        return np.arange(episode.num_samples) / episode.spec.rate_hz
    if stored.shape != (episode.num_samples,):
        raise UserError(
            f"{episode.path}: {episode.num_samples} ticks have {stored.size} timestamps; play the episode "
            "as a film, or mend it"
        )
    wrong = np.flatnonzero(~((stored >= 0) & (stored <= LATEST_S)))
    if wrong.size:
        raise UserError(
            f"{episode.path}: the timestamp of tick {wrong[0]} is {stored[wrong[0]]:g}, which is no time "
            "in seconds; play the episode as a film, or mend it"
        )
    return stored
