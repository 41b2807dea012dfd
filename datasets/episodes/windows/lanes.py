"""Windows that follow one another, so that a memory can be carried from batch to batch of a training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Sampler

from ttm.policy.errors import UserError

LONGEST_EPISODES_IN_A_LANE = 4
"""A lane is at least so many times as long as the longest episode. Few windows are then a lane's first one, which
begins in the middle of an episode and without what the memory would hold there."""

Integers = npt.NDArray[np.integer[Any]]


class LaneSampler(Sampler[tuple[Tensor, bool]]):
    """Endless batches of windows in B lanes: window b of a batch goes on where window b of the last batch ended.

    In every pass the episodes are shuffled, cut into windows without gap or overlap, and laid end to end; the list
    is cut into B lanes of equal length, and batch k takes the k-th window of each. What is left over, less than a
    window a lane, waits for the next pass. An episode's first window holds 1 to `window` of its ticks, drawn
    anew in each pass, and begins before the episode (see `WindowDataset.gather_at`), so that over the passes
    every tick is met at every place of a window. Few short episodes are laid end to end several times in a pass.

    Yields the places (B, 3) int64 for `gather_at`, and whether a pass begins: then no lane goes on with anything.
    Batch n is a function of (seed, n) alone; `first_batch` begins there.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        window: int,
        batch_size: int,
        *,
        seed: int = 0,
        first_batch: int = 0,
    ) -> None:
        """lengths: ticks of each episode."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; take at least 1")
        self.lengths = np.asarray(lengths)
        self.window = window
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch
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
        """All batches of a pass."""
        rng = np.random.default_rng([self.seed, number])
        order = np.concatenate([rng.permutation(len(self.lengths)) for _ in range(self._rounds)])
        windows = self._cut(order, rng.integers(1, self.window + 1, len(order)))
        length = len(windows) // self.batch_size
        lanes = windows[: self.batch_size * length].reshape(self.batch_size, length, 3)
        return torch.from_numpy(lanes.swapaxes(0, 1).copy())

    def _cut(self, order: Integers, in_first: Integers) -> Integers:
        """(n, 3): all windows of the episodes in `order`, with `in_first` ticks of each in its first window."""
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
