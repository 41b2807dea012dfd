"""Shuffled batches of training windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from ttm.datasets.windows.sections import Sections
from ttm.datasets.windows.shares import Integers, Mix
from ttm.policy.checks import require_at_least


class WindowSampler(Sampler[list[int]]):
    """Yields endless batches of window indices, shuffled anew in every pass.

    Batch n is a function of (seed, n) alone. A training that is resumed with `first_batch` set to
    the number of steps done therefore gets the batches that it would have got without a break.

    Every window comes once in a pass. The last few windows, which fill no batch, are left out. A
    data set with fewer windows than a batch repeats windows in it. With a `mix` each pass has as many
    windows, and each data set its share of them (see `Mix`). With `sections` the windows of a pass are
    the same, in an order in which overlapping ones come near each other (see `Sections`).
    """

    def __init__(
        self,
        num_windows: int,
        batch_size: int,
        *,
        seed: int = 0,
        first_batch: int = 0,
        mix: Mix | None = None,
        sections: Sections | None = None,
    ) -> None:
        require_at_least(1, {"batch_size": batch_size})
        self.num_windows = num_windows
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch
        self.mix = mix
        self.sections = sections

    @property
    def batches_per_pass(self) -> int:
        """The number of batches of a pass over all windows, at least 1."""
        return max(self.num_windows // self.batch_size, 1)

    def __iter__(self) -> Iterator[list[int]]:
        done, skip = divmod(self.first_batch, self.batches_per_pass)
        while True:
            windows = self._windows(done).reshape(-1, self.batch_size)
            if self.sections is not None:
                windows = self.sections.arranged(windows, self.seed, done)
            for batch in windows[skip:]:
                yield batch.tolist()
            done, skip = done + 1, 0

    def _windows(self, number: int) -> Integers:
        """Return the windows of a pass, one batch after another."""
        used = self.batches_per_pass * self.batch_size
        if self.mix is not None:
            return self.mix.draw(used, self.seed, number)
        order = np.random.default_rng([self.seed, number]).permutation(self.num_windows)
        return np.resize(order, used)
