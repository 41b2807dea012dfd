"""Shares of several data sets in a training: which windows or episodes the samplers draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]


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

    A group goes through its items in a random order, and begins again in another order when all
    were drawn. A small group with a large share is thus repeated within a pass, and a large group with
    a small share is spread over several.
    """

    def __init__(self, groups: Integers, shares: Sequence[float] | npt.NDArray[Any]) -> None:
        """groups: the group of each item, (n,). shares: of each group, with a sum of 1."""
        self._members = [np.flatnonzero(groups == group) for group in range(len(shares))]
        self._shares = np.asarray(shares)

    def draw(self, count: int, seed: int, number: int) -> Integers:
        """Return the `count` items of pass `number` in random order, (count,).

        They are a function of the arguments alone.
        """
        begins, ends = self._drawn(count * number), self._drawn(count * (number + 1))
        places = zip(self._members, begins, ends, strict=True)
        parts = [
            _from_endless(members, begin, end, seed, group)
            for group, (members, begin, end) in enumerate(places)
        ]
        order: Integers = np.random.default_rng([seed, number]).permutation(np.concatenate(parts))
        return order[:count]

    def _drawn(self, count: int) -> Integers:
        """Return how many of the first `count` items are of each group, (groups,).

        The group with the largest share has what is left by rounding.
        """
        drawn: Integers = np.floor(self._shares * count).astype(np.int64)
        drawn[self._shares.argmax()] += count - drawn.sum()
        return drawn


def _from_endless(members: Integers, begin: int, end: int, seed: int, group: int) -> Integers:
    """Return the items from place `begin` to `end` of an endless sequence.

    It goes through all `members` again and again, in another order each time.
    """
    size = len(members)
    first = begin // size
    orders = [
        np.random.default_rng([seed, number, group + 1]).permutation(members)
        for number in range(first, -(-end // size))
    ]
    return np.concatenate([members[:0], *orders])[begin - first * size : end - first * size]
