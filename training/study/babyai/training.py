"""Behaviour cloning on whole episodes: side by side those of like length, so that there is little padding.

A batch has about the same number of ticks, whatever the episodes' lengths. Every core meets the same batches in the
same order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.training.common.schedule import WarmupCosine
from ttm.training.study.babyai.demos import Demonstrations
from ttm.training.study.babyai.policy import BabyaiPolicy, Vocabulary

POOL = 16
"""Batches that are cut from episodes sorted by length."""
NO_LOSS = -100
"""In place of an action, where an episode is over."""
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class EpisodeBatch:
    """B episodes from their first tick on, filled up to the T ticks of the longest."""

    sentences: Tensor
    """(M, words) int64: the different instructions."""
    which: Tensor
    """(B,) int64: the instruction of each."""
    tiles: Tensor
    """(B, T, 49) int64."""
    directions: Tensor
    """(B, T) int64."""
    actions: Tensor
    """(B, T) int64, `NO_LOSS` after the end."""


class EpisodeBatches:
    """Cuts demonstrations into batches."""

    def __init__(self, demonstrations: Demonstrations, vocabulary: Vocabulary, ticks: int) -> None:
        """ticks: of a batch, at most, fillers included; an episode that is longer has a batch of its own."""
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

    def endless(self, seed: int) -> Iterator[EpisodeBatch]:
        """Pass after pass, in an order that depends on `seed` alone."""
        rng = np.random.default_rng(seed)
        while True:
            for episodes in self.one_pass(rng):
                yield self.batch(episodes)

    def one_pass(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Every episode once: their numbers, batch by batch."""
        order = rng.permutation(len(self._lengths))
        share = self._lengths[order].cumsum() // (POOL * self._ticks)
        for pool in np.split(order, np.flatnonzero(np.diff(share)) + 1):
            batches = self._cut(pool[np.argsort(self._lengths[pool], kind="stable")])
            for i in rng.permutation(len(batches)):
                yield batches[i]

    def batch(self, episodes: NDArray[np.int64]) -> EpisodeBatch:
        """episodes: (B,), numbers."""
        lengths, first = (
            torch.from_numpy(values[episodes]) for values in (self._lengths, self._first)
        )
        tick = torch.arange(int(lengths.max()))
        real = tick < lengths[:, None]  # (B, T)
        place = torch.where(real, first[:, None] + tick, 0)
        asked, which = self._which[episodes].unique(return_inverse=True)
        return EpisodeBatch(
            self._sentences[asked],
            which,
            self._tiles[place].long(),
            self._directions[place].long(),
            torch.where(real, self._actions[place].long(), NO_LOSS),
        )

    def _cut(self, episodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """episodes: from short to long -> batches of them."""
        batches: list[list[int]] = [[]]
        for episode in episodes.tolist():
            if batches[-1] and (len(batches[-1]) + 1) * self._lengths[episode] > self._ticks:
                batches.append([])
            batches[-1].append(episode)
        return [np.array(batch) for batch in batches]


def cloning_loss(policy: BabyaiPolicy, batch: EpisodeBatch) -> Tensor:
    """Cross-entropy with the bot's actions, a scalar; every tick counts the same."""
    instructions = policy.instruct(batch.sentences)
    scores, _ = policy(instructions, batch.which, batch.tiles, batch.directions)
    return F.cross_entropy(scores.flatten(0, 1), batch.actions.flatten(), ignore_index=NO_LOSS)


@dataclass(frozen=True)
class Progress:
    """Where a training stands."""

    steps: int
    loss: float
    """Mean since the last of these."""
    seconds: float
    """Of the clock, since the beginning."""


def clone(
    policy: BabyaiPolicy,
    batches: Iterator[EpisodeBatch],
    steps: int,
    learning_rate: float,
    report_every: int,
) -> Iterator[Progress]:
    """Trains with Adam, a warm-up, and half a cosine; yields every `report_every` steps and at the end."""
    schedule = WarmupCosine(peak=learning_rate)
    optimizer = torch.optim.Adam(policy.parameters(), learning_rate)
    begun, losses = time.perf_counter(), []
    policy.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = schedule.learning_rate(step, step / steps)
        loss = cloning_loss(policy, next(batches))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == report_every or step + 1 == steps:
            yield Progress(step + 1, sum(losses) / len(losses), time.perf_counter() - begun)
            losses = []
