"""Batches of windows in which each window continues the one of the batch before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from ttm.datasets.windows.shares import Integers, Mix
from ttm.policy.checks import require_at_least

LONGEST_EPISODES_IN_A_LANE = 4
"""The minimum length of a lane, in lengths of the longest episode.

A lane's first window often begins in the middle of an episode, without the memory of the ticks
before. In long lanes there are few such windows."""


class LaneSampler(Sampler[tuple[Tensor, bool]]):
    """Yields endless batches of windows in B lanes, for training with a carried memory.

    Window b of a batch continues where window b of the batch before ended. In every pass, the
    episodes are shuffled, cut into windows without gap or overlap, and laid end to end. This list
    is cut into B lanes of equal length, and batch k consists of the k-th window of each lane.
    What is left over, less than a window per lane, is left out. A few short episodes are laid end
    to end several times in a pass. With a `mix` a pass has as many episodes, of which those of a data
    set have its share (see `Mix`).

    The first window of an episode begins before the episode (see `WindowDataset.gather_at`) and
    holds 1 to `window` of its ticks, a number that is drawn anew in each pass. Over the passes,
    every tick is therefore met at every position of a window.

    Each item is a pair: the places (B, 3) int64 for `WindowDataset.gather_at`, and a bool that is
    True in the first batch of a pass, in which no lane continues anything. Batch n is a function
    of (seed, n) alone; `first_batch` is the n of the first item.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        window: int,
        batch_size: int,
        *,
        seed: int = 0,
        first_batch: int = 0,
        mix: Mix | None = None,
    ) -> None:
        """lengths: the number of ticks of each episode."""
        require_at_least(1, {"batch_size": batch_size})
        self.lengths = np.asarray(lengths)
        self.window = window
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch
        self.mix = mix
        windows = -(-self.lengths // window)  # the fewest that an episode can be cut into
        wanted = LONGEST_EPISODES_IN_A_LANE * batch_size * windows.max()
        self._rounds = max(1, -(-wanted // windows.sum()))

    def __iter__(self) -> Iterator[tuple[Tensor, bool]]:
        skip = self.first_batch
        for number in itertools.count():
            lanes = self._lanes(number)  # (k, B, 3)
            for k in range(skip, len(lanes)):
                yield lanes[k], k == 0
            skip = max(skip - len(lanes), 0)

    def _lanes(self, number: int) -> Tensor:
        """Return all batches of a pass, (k, B, 3)."""
        rng = np.random.default_rng([self.seed, number])
        count = len(self.lengths)
        if self.mix is None:
            order = np.concatenate([rng.permutation(count) for _ in range(self._rounds)])
        else:
            order = self.mix.draw(count * self._rounds, self.seed, number)
        windows = self._cut(order, rng.integers(1, self.window + 1, len(order)))
        length = len(windows) // self.batch_size
        lanes = windows[: self.batch_size * length].reshape(self.batch_size, length, 3)
        return torch.from_numpy(lanes.swapaxes(0, 1).copy())

    def _cut(self, order: Integers, in_first: Integers) -> Integers:
        """Return the places (n, 3) of all windows of the episodes in `order`, one after another.

        in_first: the number of ticks of each episode in its first window.
        """
        lengths = self.lengths[order]
        counts = 1 + -(-np.maximum(lengths - in_first, 0) // self.window)
        episode, in_first, lengths = (
            np.repeat(values, counts) for values in (order, in_first, lengths)
        )
        place = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = in_first + (place - 1) * self.window
        return np.stack([episode, first, np.minimum(self.window, lengths - first)], axis=1).astype(
            np.int64
        )
