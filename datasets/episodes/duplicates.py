"""Episodes that occur more than once: copies, hard links, or the same file named twice.

They are found by what they hold. Names and places of files do not count.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.policy.errors import UserError

FRAMES = 4
"""So many frames of each camera are compared, evenly spread, where all actions are equal."""


def same_episodes(episodes: Sequence[EpisodeReader]) -> list[list[int]]:
    """Return the groups of two or more episodes that hold the same, as indices in rising order.

    The same are episodes with the same actions, proprioception and frames. Frames and
    proprioception are read only where all actions are equal.
    """
    alike = _groups(range(len(episodes)), lambda index: _digest([episodes[index].actions]))
    found = []
    for group in alike:
        found += _groups(group, lambda index: _digest(_observations(episodes[index])))
    return sorted(found)


def held_apart(training: EpisodeDataset, validation: EpisodeDataset) -> EpisodeDataset:
    """Return the training episodes without those that are, or equal, one for validation.

    The note says how many were left out, and how many occur more than once. Raises `UserError` if
    none is left.
    """
    everything = [*training, *validation]
    groups = same_episodes(everything)
    count = len(training)
    shared = {index for group in groups if group[-1] >= count for index in group if index < count}
    kept = [episode for index, episode in enumerate(training) if index not in shared]
    if count and not kept:
        raise UserError(
            f"{training.source}: every episode to train on is also held out for validation; give "
            "other masks with --filter and --validation-filter, or more episodes"
        )
    repeated = sum(len(group) - 1 for group in groups if group[-1] < count)
    notes = [training.note]
    if shared:
        notes.append(
            f"{len(shared)} episodes are not trained on, because they or copies of them are held out"
        )
    if repeated:
        notes.append(f"{repeated} episodes are copies of others, and count twice in the training")
    return EpisodeDataset(
        kept,
        training.spec,
        source=training.source,
        note="; ".join(filter(None, notes)),
        members=training.members,
    )


def _groups(indices: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return the groups of two or more indices with the same key."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for index in indices:
        found[key(index)].append(index)
    return [group for group in found.values() if len(group) > 1]


def _observations(episode: EpisodeReader) -> Iterable[Any]:
    for vector in episode.spec.proprioception:
        yield episode.proprioception(vector.name)
    ticks = np.unique(np.linspace(0, episode.num_samples - 1, FRAMES).astype(int)).tolist()
    for camera in episode.spec.cameras:
        for tick in ticks:
            yield episode.frames(camera.name, tick, tick + 1)


def _digest(arrays: Iterable[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(repr(array.shape).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()
