"""Statistics of a data set: the spread of each dimension of its actions and proprioception."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ttm.datasets.episode_reader import EpisodeReader, Floats
from ttm.policy.errors import UserError

LEAST_DEVIATION = 1e-8
"""A dimension of the action whose standard deviation is not above this never moved."""


@dataclass(frozen=True)
class VectorStatistics:
    """Statistics of a vector of K values over all ticks, each (K,) float32, in its own units."""

    mean: Floats
    std: Floats
    min: Floats
    max: Floats


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of the actions, and of each proprioception vector by its name."""

    actions: VectorStatistics
    proprioception: dict[str, VectorStatistics]


def dataset_statistics(episodes: Iterable[EpisodeReader]) -> DatasetStatistics:
    """Return the statistics over every tick of `episodes`, which must have the same spec.

    Raises `UserError` if there is no episode.
    """
    episodes = list(episodes)
    if not episodes:
        raise UserError("there is no episode to take statistics of; give at least one")
    return DatasetStatistics(
        actions=vector_statistics(np.concatenate([episode.actions for episode in episodes])),
        proprioception={
            vector.name: vector_statistics(
                np.concatenate([episode.proprioception(vector.name) for episode in episodes])
            )
            for vector in episodes[0].spec.proprioception
        },
    )


def vector_statistics(values: Floats) -> VectorStatistics:
    """Return the statistics of values (n, K).

    Sums are taken in float64, because float32 would lose digits over long recordings.
    """
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite values, which checks name
        found = (wide.mean(axis=0), wide.std(axis=0), wide.min(axis=0), wide.max(axis=0))
    return VectorStatistics(*(item.astype(np.float32) for item in found))


def require_motion(actions: VectorStatistics, where: str) -> None:
    """Raise `UserError` if no dimension of the actions of a training moves. where: their source."""
    if not (actions.std > LEAST_DEVIATION).any():
        raise UserError(
            f"{where}: the action is the same at every tick to train on, so there is nothing to "
            "learn; record more, or look at the actions with `ttm data show`"
        )
