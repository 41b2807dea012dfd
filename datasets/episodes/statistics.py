"""What normalisation needs to know of a data set: the spread of every action and proprioception dimension."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ttm.datasets.episode_reader import Episode, Floats
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class VectorStatistics:
    """Of one vector of K values over all ticks; each (K,) float32, in the vector's own units."""

    mean: Floats
    std: Floats
    min: Floats
    max: Floats
    q01: Floats
    q99: Floats


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of the actions, and of each proprioception vector by name, over `num_ticks` ticks."""

    num_ticks: int
    actions: VectorStatistics
    proprioception: dict[str, VectorStatistics]


def dataset_statistics(episodes: Iterable[Episode]) -> DatasetStatistics:
    """Statistics over every tick of `episodes`, which must be of one spec and at least one."""
    episodes = list(episodes)
    if not episodes:
        raise UserError("there is no episode to take statistics of; give at least one")
    actions = np.concatenate([episode.actions for episode in episodes])
    return DatasetStatistics(
        num_ticks=len(actions),
        actions=vector_statistics(actions),
        proprioception={
            vector.name: vector_statistics(
                np.concatenate([e.proprioception(vector.name) for e in episodes])
            )
            for vector in episodes[0].spec.proprioception
        },
    )


def vector_statistics(values: Floats) -> VectorStatistics:
    """values: (n, K). Sums are taken in float64, because float32 ones drift over long recordings."""
    wide = values.astype(np.float64)
    low, high = np.quantile(wide, [0.01, 0.99], axis=0)
    found = (wide.mean(axis=0), wide.std(axis=0), wide.min(axis=0), wide.max(axis=0), low, high)
    return VectorStatistics(*(item.astype(np.float32) for item in found))
