"""A fingerprint of the episodes of a training, by which a resumed training knows them again.

Names, places and times of files do not count, so that data can be moved or copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset

EPISODES = 32
"""Of so many episodes, evenly spread, the first frame of each camera counts. To read all frames
would take as long as an epoch; all other arrays are in memory, and count whole."""


def fingerprint(
    name: str, episodes: EpisodeDataset, vectors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return what the episodes hold, by names that begin with `name`, as plain data for JSON.

    vectors: what their ticks hold besides frames, by name. Digests stand for arrays and texts, in
    the order of the episodes, on which the batches depend.
    """
    found = {
        "episodes": len(episodes),
        "ticks": episodes.num_ticks,
        "lengths": _digest([np.array([episode.num_samples for episode in episodes])]),
        "instructions": _digest([np.array([episode.instruction for episode in episodes])]),
        "frames": _digest(_first_frames(episodes)),
        **{key: _digest([value.cpu().numpy()]) for key, value in vectors.items()},
    }
    return {f"{name} {key}": value for key, value in found.items()}


def _first_frames(episodes: EpisodeDataset) -> Iterator[Any]:
    chosen = np.unique(np.linspace(0, len(episodes) - 1, EPISODES).astype(int)).tolist()
    for index in chosen:
        for camera in episodes.spec.cameras:
            yield episodes[index].frames(camera.name, 0, 1)


def _digest(arrays: Iterable[Any]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
