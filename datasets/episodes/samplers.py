"""Shuffled batches of windows or episodes, and the shares that several data sets have in them.

Every sampler yields endless batches, and batch n is a function of (seed, n) alone. A training that is
resumed with `first_batch` set to the number of steps done therefore gets the batches that it would have
got without a break.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Sampler

from ttm.policy.errors import require_at_least

Integers = npt.NDArray[np.integer[Any]]

BATCHES_IN_A_GROUP = 8
"""Batches whose episodes are sorted by length together. More leave less padding, and make the
composition of a batch less random."""

LONGEST_EPISODES_IN_A_LANE = 4
"""The minimum length of a lane, in lengths of the longest episode. A lane's first window often begins in
the middle of an episode, without the memory of the ticks before; long lanes have few such windows."""

SECTION = 16
"""Windows of a section, at most: consecutive ones of an episode, which have most frames in common.
Longer sections would need more memory for little."""


@dataclass(frozen=True)
class DataShares:
    """The data set of each episode, and the share of each data set in the windows that are drawn."""

    data_sets: tuple[int, ...]
    """Of each episode; each of `shares` has one episode at least."""
    shares: tuple[float, ...]
    """Above 0, with a sum of 1."""

    def of_windows(self, episodes: Integers) -> Mix:
        """Return a mix of windows, given the episode of each window."""
        return Mix(np.asarray(self.data_sets)[episodes], self.shares)

    def of_episodes(self) -> Mix:
        """Return a mix of episodes that counts each as one window, however long it is."""
        return Mix(np.asarray(self.data_sets), self.shares)

    def of_ticks(self, lengths: Sequence[int]) -> Mix:
        """Return a mix of episodes whose ticks have the shares, given the length of each episode."""
        data_sets, ticks = np.asarray(self.data_sets), np.asarray(lengths)
        means = [ticks[data_sets == each].mean() for each in range(len(self.shares))]
        shares = np.asarray(self.shares) / means
        return Mix(data_sets, shares / shares.sum())


class Mix:
    """Draws items of several groups, so that each group has its share of every pass.

    A group begins again in another order when all its items were drawn. So a small group with a large
    share is repeated within a pass, and a large group with a small share is spread over several.
    """

    def __init__(self, groups: Integers, shares: Sequence[float] | npt.NDArray[Any]) -> None:
        """groups: the group of each item, (n,). shares: of each group, with a sum of 1."""
        self._members = [np.flatnonzero(groups == group) for group in range(len(shares))]
        self._shares = np.asarray(shares)

    def draw(self, count: int, seed: int, number: int) -> Integers:
        """Return the `count` items of pass `number` in random order, a function of the arguments alone."""
        begins, ends = self._drawn(count * number), self._drawn(count * (number + 1))
        places = zip(self._members, begins, ends, strict=True)
        parts = [
            _from_endless(members, begin, end, seed, group)
            for group, (members, begin, end) in enumerate(places)
        ]
        order: Integers = np.random.default_rng([seed, number]).permutation(np.concatenate(parts))
        return order[:count]

    def _drawn(self, count: int) -> Integers:
        """Return how many of the first `count` items are of each group; the largest share has the rest."""
        drawn: Integers = np.floor(self._shares * count).astype(np.int64)
        drawn[self._shares.argmax()] += count - drawn.sum()
        return drawn


def _from_endless(members: Integers, begin: int, end: int, seed: int, group: int) -> Integers:
    """Return the items from place `begin` to `end` of endless passes over `members`, each in its order."""
    size = len(members)
    first = begin // size
    orders = [
        np.random.default_rng([seed, number, group + 1]).permutation(members)
        for number in range(first, -(-end // size))
    ]
    return np.concatenate([members[:0], *orders])[begin - first * size : end - first * size]


class BatchSampler(Sampler[Any]):
    """What the samplers share: batches that are made pass by pass."""

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        seed: int = 0,
        first_batch: int = 0,
        mix: Mix | None = None,
    ) -> None:
        """first_batch: the n of the first batch. mix: gives each data set its share of every pass."""
        require_at_least(1, {"batch_size": batch_size})
        self.batch_size = batch_size
        self.seed = seed
        self.first_batch = first_batch
        self.mix = mix
        self.batches_per_pass = max(num_items // batch_size, 1)
        """The number of batches of a pass over all items."""

    def __iter__(self) -> Iterator[Any]:
        number, skip = divmod(self.first_batch, self.batches_per_pass)
        for each in itertools.count(number):
            yield from self._batches(each)[skip:]
            skip = 0

    def _batches(self, number: int) -> list[Any]:
        """Return all batches of a pass."""
        raise NotImplementedError

    def _drawn(self, order: Integers, number: int) -> Integers:
        """Return the items of a pass, one batch after another.

        order: a random one of all items, of which those that fill no batch are left out. Fewer items
        than a batch are repeated.
        """
        count = self.batches_per_pass * self.batch_size
        if self.mix is None:
            return np.resize(order, count)
        return self.mix.draw(count, self.seed, number)


class EpisodeSampler(BatchSampler):
    """Yields endless batches of episode indices, in which the episodes are of similar length.

    In every pass, the episodes are shuffled and dealt to groups of `BATCHES_IN_A_GROUP` batches.
    Each group is sorted by length (equal lengths stay shuffled) and cut into batches, and the
    batches of all groups are shuffled. Every episode comes once in a pass, but for the last few that fill
    no batch. Fewer episodes than a batch are repeated in it.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, **options: Any) -> None:
        """lengths: the number of ticks of each episode. options: those of `BatchSampler`."""
        super().__init__(len(lengths), batch_size, **options)
        self.lengths = np.asarray(lengths)

    def _batches(self, number: int) -> list[list[int]]:
        rng = np.random.default_rng([self.seed, number])
        order = rng.permutation(len(self.lengths)) if self.mix is None else self.lengths
        used = self._drawn(order, number)
        size = BATCHES_IN_A_GROUP * self.batch_size
        groups = [used[start : start + size] for start in range(0, len(used), size)]
        by_length = [group[np.argsort(self.lengths[group], kind="stable")] for group in groups]
        batches = np.concatenate(by_length).reshape(-1, self.batch_size)
        found: list[list[int]] = rng.permutation(batches).tolist()
        return found


class LaneSampler(BatchSampler):
    """Yields endless batches of windows in B lanes, for training with a carried memory.

    Window b of a batch continues where window b of the batch before ended. In every pass, the
    episodes are shuffled, cut into windows without gap or overlap, and laid end to end. This list
    is cut into B lanes of equal length, and batch k consists of the k-th window of each lane.
    What is left over, less than a window per lane, is left out. A few short episodes are laid end
    to end several times in a pass.

    The first window of an episode begins before the episode (see `WindowDataset.gather_at`) and holds 1 to
    `window` of its ticks, at random. So every tick is met at every position of a window.

    Each item is a pair: the places (B, 3) int64 for `WindowDataset.gather_at`, and a bool that is
    True in the first batch of a pass, in which no lane continues anything.
    """

    def __init__(
        self, lengths: Sequence[int], window: int, batch_size: int, **options: Any
    ) -> None:
        """lengths: the number of ticks of each episode. options: those of `BatchSampler`."""
        super().__init__(len(lengths), batch_size, **options)
        self.lengths = np.asarray(lengths)
        self.window = window
        windows = -(-self.lengths // window)  # the fewest that an episode can be cut into
        wanted = LONGEST_EPISODES_IN_A_LANE * batch_size * windows.max()
        self._rounds = max(1, -(-wanted // windows.sum()))

    def __iter__(self) -> Iterator[tuple[Tensor, bool]]:
        skip = self.first_batch  # passes differ in their number of batches
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
            np.repeat(each, counts) for each in (order, in_first, lengths)
        )
        place = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = in_first + (place - 1) * self.window
        return np.stack([episode, first, np.minimum(self.window, lengths - first)], axis=1).astype(
            np.int64
        )


class Sections:
    """Arranges the windows of a pass, so that a frame is needed again soon after it was read.

    Each episode is cut into sections, at other places in each pass. The sections come in random order,
    and the windows of each in random order, all one after another. This list is cut into `apart` × B lanes
    of equal length, with batches of B windows. Batch n takes the next window of the B lanes of turn n
    modulo `apart`. So B × `apart` sections are open at a time, and a batch has windows of B of them.
    """

    def __init__(self, episodes: Integers, first_ticks: Integers, apart: int) -> None:
        """episodes, first_ticks: those of each window, (n,), of which the windows are sorted by."""
        self._episodes = np.asarray(episodes)
        self._first_ticks = np.asarray(first_ticks)
        self.apart = apart

    def arranged(self, drawn: Integers, seed: int, number: int) -> Integers:
        """Return the windows `drawn` (batches, B) in the order of the sections. number: that of the pass."""
        rng = np.random.default_rng([seed, number, 0, 1])
        section = self._sections(rng)
        place = rng.permutation(section[-1] + 1)[section[drawn.ravel()]]
        in_sections = drawn.ravel()[np.argsort(place, kind="stable")]
        return in_sections[_lanes(len(drawn), drawn.shape[1], self.apart)]

    def _sections(self, rng: np.random.Generator) -> Integers:
        """Cut all episodes into sections; return the number of that of each window, (n,)."""
        shift = rng.integers(SECTION, size=self._episodes[-1] + 1)
        within = (self._first_ticks + shift[self._episodes]) // SECTION
        numbered = self._episodes * (within.max() + 1) + within
        found: Integers = np.cumsum(np.diff(numbered, prepend=numbered[:1]) != 0)
        return found


def _lanes(batches: int, size: int, apart: int) -> Integers:
    """Return the place of each window of the batches, (batches, size), in the list that is cut up."""
    batch = np.arange(batches)
    lengths = np.bincount(batch % apart, minlength=apart).repeat(size)  # of the lanes, turn by turn
    begins = (np.cumsum(lengths) - lengths).reshape(apart, size)
    places: Integers = begins[batch % apart] + (batch // apart)[:, None]
    return places


class WindowSampler(BatchSampler):
    """Yields endless batches of window indices, shuffled again in every pass.

    Every window comes once in a pass, but for the last few that fill no batch. A data set with fewer
    windows than a batch repeats them in it. With `sections` the windows of a pass are the same, in an order
    in which overlapping ones come near each other.
    """

    def __init__(
        self, num_windows: int, batch_size: int, *, sections: Sections | None = None, **options: Any
    ) -> None:
        """options: those of `BatchSampler`."""
        super().__init__(num_windows, batch_size, **options)
        self.num_windows = num_windows
        self.sections = sections

    def _batches(self, number: int) -> list[list[int]]:
        order = np.random.default_rng([self.seed, number]).permutation(self.num_windows)
        windows = self._drawn(order, number).reshape(-1, self.batch_size)
        if self.sections is not None:
            windows = self.sections.arranged(windows, self.seed, number)
        found: list[list[int]] = windows.tolist()
        return found
