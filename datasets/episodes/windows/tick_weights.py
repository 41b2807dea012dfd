"""The weight of each tick in the loss of a training: as recorded, and by three rules.

Most ticks of a demonstration go on with what the robot already does. The few at which a choice
shows decide the task, and weigh too little in a plain mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.episode_dataset import EpisodeDataset
from ttm.datasets.episode_reader import EpisodeReader
from ttm.datasets.statistics import VectorStatistics, dataset_statistics
from ttm.policy.errors import UserError

CHANGE = 1.0
"""An action changes where a dimension differs by more than this from the tick before, in standard
deviations of that dimension. A binary dimension thereby changes whenever its value does."""
STILL = 0.02
"""A robot stands still while no proprioception moves by more than this in a tick, in standard
deviations of its dimension."""
STILL_TICKS = 3
"""Ticks without motion that make a stand-still."""
START_TICKS = 3
"""Ticks after a stand-still that count as its end. The first of them is the first that moves."""

Floats = npt.NDArray[np.float32]
Booleans = npt.NDArray[np.bool_]


def tick_weights(
    episodes: EpisodeDataset, *, changes: float = 1.0, starts: float = 1.0, policy: float = 1.0
) -> Tensor:
    """Return the weight of each dataset tick, (num_ticks,) float32.

    It is the product of `EpisodeReader.loss_weights`, `changes` at the ticks at which the action
    changes, `starts` at the first ticks after a stand-still, and `policy` where a policy drove and no
    person. Standard deviations are those of `episodes`.

    Raises `UserError` if `starts` is not 1 and the robot has no proprioception, and if nothing weighs
    more than 0.
    """
    weights = np.concatenate([_driven_weights(episode, policy) for episode in episodes])
    if not weights.any():
        raise UserError(
            f"no tick of {episodes.source} has a weight above 0; add episodes that a person drove, or "
            "give those of a policy a weight"
        )
    if changes == 1 and starts == 1:
        return torch.from_numpy(weights)
    if starts != 1 and not episodes.spec.proprioception:
        raise UserError(
            f"{episodes.source} has no proprioception, which tells when the robot stands still; "
            "record it, or let starts weigh 1"
        )
    spread = dataset_statistics(episodes)
    places = np.cumsum([0, *(episode.num_samples for episode in episodes)])
    for episode, first, stop in zip(episodes, places[:-1], places[1:], strict=True):
        here = weights[first:stop]
        here[action_changes(episode.actions, spread.actions)] *= changes
        if starts != 1:
            moves = np.zeros(len(here), dtype=np.bool_)
            for name, of_vector in spread.proprioception.items():
                moves |= motion(episode.proprioception(name), of_vector)
            here[starts_after_standing(moves)] *= starts
    return torch.from_numpy(weights)


def _driven_weights(episode: EpisodeReader, policy: float) -> Floats:
    """Return the recorded weights (T,), times `policy` where a policy drove."""
    driven = episode.interventions
    if driven is None or policy == 1:
        return episode.loss_weights
    return np.where(driven, 1, policy).astype(np.float32) * episode.loss_weights


def action_changes(actions: Floats, spread: VectorStatistics) -> Booleans:
    """Return the ticks (T,) whose action (T, A) differs from the tick before; never the first."""
    changed = np.zeros(len(actions), dtype=np.bool_)
    changed[1:] = (np.abs(np.diff(actions, axis=0)) > CHANGE * spread.std).any(axis=1)
    return changed


def motion(values: Floats, spread: VectorStatistics) -> Booleans:
    """Return the ticks (T,) after which a vector (T, K) has another value.

    The last tick, after which nothing is recorded, does not count.
    """
    moves = np.zeros(len(values), dtype=np.bool_)
    moves[:-1] = (np.abs(np.diff(values, axis=0)) > STILL * spread.std).any(axis=1)
    return moves


def starts_after_standing(moves: Booleans) -> Booleans:
    """Return the first `START_TICKS` ticks of each motion that follows a stand-still, (T,)."""
    starts = np.zeros_like(moves)
    still = 0
    for tick, moving in enumerate(moves.tolist()):
        if moving and still >= STILL_TICKS:
            starts[tick : tick + START_TICKS] = True
        still = 0 if moving else still + 1
    return starts
