"""Behaviour cloning on whole episodes, in batches of episodes of similar length.

A batch has about the same number of ticks, whatever the lengths of its episodes. Every core gets
the same batches in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ttm.training.common.fit import Progress, fit
from ttm.training.common.schedule import WarmupCosine
from ttm.training.study.minigrid.demonstrations import Demonstrations
from ttm.training.study.minigrid.policy import MinigridPolicy, Vocabulary

POOL = 16
"""Number of batches that are cut from one pool of episodes, sorted by length."""
NO_LOSS = -100
"""Stands in place of an action after the end of an episode."""


class EpisodeTensors(NamedTuple):
    """B episodes from their first tick on, padded to the T ticks of the longest."""

    sentences: Tensor
    """(M, words) int64, the different instructions."""
    which: Tensor
    """(B,) int64, the number of each episode's instruction."""
    tiles: Tensor
    """(B, T, 49) int64."""
    directions: Tensor
    """(B, T) int64."""
    actions: Tensor
    """(B, T) int64, `NO_LOSS` after the end."""


class EpisodeSampler:
    """Cuts demonstrations into batches."""

    def __init__(self, demonstrations: Demonstrations, vocabulary: Vocabulary, ticks: int) -> None:
        """ticks: most ticks of a batch with its padding; a longer episode has its own batch."""
        missions = sorted(set(demonstrations.missions))
        number = {mission: i for i, mission in enumerate(missions)}
        self._sentences = vocabulary.sentences(missions)
        self._which = torch.tensor([number[mission] for mission in demonstrations.missions])
        self._tiles = torch.from_numpy(vocabulary.tiles(demonstrations.images))
        self._directions = torch.from_numpy(demonstrations.directions)
        self._actions = torch.from_numpy(demonstrations.actions)
        self._lengths = demonstrations.lengths
        self._first = np.cumsum(demonstrations.lengths) - demonstrations.lengths
        self._ticks = ticks

    def endless(self, seed: int) -> Iterator[EpisodeTensors]:
        """Yield batches without end, pass after pass, in an order that depends on `seed` alone."""
        rng = np.random.default_rng(seed)
        while True:
            for episodes in self.one_pass(rng):
                yield self.batch(episodes)

    def one_pass(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the episodes of each batch; every episode comes once."""
        order = rng.permutation(len(self._lengths))
        pool_of = self._lengths[order].cumsum() // (POOL * self._ticks)
        for pool in np.split(order, np.flatnonzero(np.diff(pool_of)) + 1):
            batches = self._cut(pool[np.argsort(self._lengths[pool], kind="stable")])
            for i in rng.permutation(len(batches)):
                yield batches[i]

    def batch(self, episodes: NDArray[np.int64]) -> EpisodeTensors:
        """Return the episodes with these numbers (B,)."""
        lengths, first = (
            torch.from_numpy(values[episodes]) for values in (self._lengths, self._first)
        )
        tick = torch.arange(int(lengths.max()))
        real = tick < lengths[:, None]  # (B, T)
        place = torch.where(real, first[:, None] + tick, 0)
        asked, which = self._which[episodes].unique(return_inverse=True)
        return EpisodeTensors(
            self._sentences[asked],
            which,
            self._tiles[place].long(),
            self._directions[place].long(),
            torch.where(real, self._actions[place].long(), NO_LOSS),
        )

    def _cut(self, episodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut episodes, sorted from short to long, into batches."""
        batches: list[list[int]] = [[]]
        for episode in episodes.tolist():
            if batches[-1] and (len(batches[-1]) + 1) * self._lengths[episode] > self._ticks:
                batches.append([])
            batches[-1].append(episode)
        return [np.array(batch) for batch in batches]


def cloning_loss(
    policy: MinigridPolicy,
    sentences: Tensor,
    which: Tensor,
    tiles: Tensor,
    directions: Tensor,
    actions: Tensor,
) -> Tensor:
    """Return the cross-entropy with the demonstrated actions, a scalar; see `EpisodeTensors`."""
    scores, _ = policy(policy.instruct(sentences), which, tiles, directions)
    return action_loss(scores, actions)


def action_loss(scores: Tensor, actions: Tensor) -> Tensor:
    """Return the cross-entropy, to which every tick of every episode contributes alike.

    scores: (B, T, 7). actions: (B, T) int64, see `EpisodeTensors`.
    """
    return F.cross_entropy(scores.flatten(0, 1), actions.flatten(), ignore_index=NO_LOSS)


def clone(
    policy: MinigridPolicy,
    batches: Iterator[EpisodeTensors],
    steps: int,
    learning_rate: float,
    report_every: int,
    loss: Callable[..., Tensor] = cloning_loss,
) -> Iterator[Progress]:
    """Train for `steps` steps with a warm-up and half a cosine; yield as `fit` does.

    loss: called with the policy and the parts of `EpisodeTensors`.
    """
    schedule = WarmupCosine(peak=learning_rate)
    return fit(
        policy,
        islice(batches, steps),
        loss,
        learning_rate=lambda step: schedule.learning_rate(step, step / steps),
        report_every=report_every,
    )
