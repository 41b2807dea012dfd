"""Batches of whole episodes of similar length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from ttm.datasets.windows.shares import Integers, Mix
from ttm.policy.checks import require_at_least

BATCHES_IN_A_GROUP = 8
"""Batches whose episodes are sorted by length together.

More leave less padding, and make the composition of a batch less random."""


class EpisodeSampler(Sampler[list[int]]):
    """Yields endless batches of episode indices, in which the episodes are of similar length.

    In every pass, the episodes are shuffled and dealt to groups of `BATCHES_IN_A_GROUP` batches.
    Each group is sorted by length (equal lengths stay shuffled) and cut into batches, and the
    batches of all groups are shuffled. Every episode comes once in a pass, except for the last few
    of the shuffled list, which fill no batch. Fewer episodes than a batch are repeated in it. With a
    `mix` each pass has as many episodes, and each data set its share of them (see `Mix`).

    Batch n is a function of (seed, n) alone; `first_batch` is the n of the first item.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        *,
        seed: int = 0,
        first_batch: int = 0,
        mix: Mix | None = None,
    ) -> None:
        """lengths: the number of ticks of each episode."""
        require_at_least(1, {"batch_size": batch_size})
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch
        self.mix = mix

    @property
    def batches_per_pass(self) -> int:
        """The number of batches of a pass over all episodes, at least 1."""
        return max(len(self.lengths) // self.batch_size, 1)

    def __iter__(self) -> Iterator[list[int]]:
        first_pass, skip = divmod(self.first_batch, self.batches_per_pass)
        for number in itertools.count(first_pass):
            yield from self._batches(number)[skip:]
            skip = 0

    def _batches(self, number: int) -> list[list[int]]:
        """Return all batches of a pass, each a list of `batch_size` episodes."""
        rng = np.random.default_rng([self.seed, number])
        count = self.batches_per_pass * self.batch_size
        used: Integers
        if self.mix is None:
            used = np.resize(rng.permutation(len(self.lengths)), count)
        else:
            used = self.mix.draw(count, self.seed, number)
        size = BATCHES_IN_A_GROUP * self.batch_size
        groups = [used[start : start + size] for start in range(0, len(used), size)]
        by_length = [group[np.argsort(self.lengths[group], kind="stable")] for group in groups]
        batches = np.concatenate(by_length).reshape(-1, self.batch_size)
        found: list[list[int]] = rng.permutation(batches).tolist()
        return found
