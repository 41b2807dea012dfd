"""Recorded episodes laid end to end, as chains that are much longer than the episodes."""

from __future__ import annotations

from itertools import chain as joined
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


class Stretch(NamedTuple):
    """The ticks of an episode from `first` to `stop` (exclusive)."""

    episode: int
    first: int
    stop: int

    @property
    def num_ticks(self) -> int:
        """The number of ticks."""
        return self.stop - self.first


Chain = list[Stretch]


def lay_chains(lengths: list[int], count: int, ticks: int, seed: int) -> list[Chain]:
    """Return `count` chains of `ticks` ticks over episodes of `lengths` ticks.

    Each chain depends on (seed, its number) alone. A chain enters its first episode at a random tick,
    so that every tick number meets the same mixture of situations.
    """
    return [
        _lay_chain(lengths, ticks, np.random.default_rng([seed, number])) for number in range(count)
    ]


def seams(chain: Chain) -> Bools:
    """Return, for each tick (T,), whether it is the first tick of an episode, except for the chain's own."""
    ends = np.cumsum([stretch.num_ticks for stretch in chain])
    found = np.zeros(ends[-1], bool)
    found[ends[:-1]] = True
    return found


def _lay_chain(lengths: list[int], ticks: int, rng: np.random.Generator) -> Chain:
    entry = int(rng.integers(sum(lengths)))  # a tick of the whole data set
    ends = np.cumsum(lengths)
    first = int(np.searchsorted(ends, entry, side="right"))
    chain = [Stretch(first, entry - int(ends[first]) + lengths[first], lengths[first])]
    for episode in joined.from_iterable(
        rng.permutation(len(lengths)).tolist() for _ in range(ticks)
    ):
        missing = ticks - sum(stretch.num_ticks for stretch in chain)
        if missing <= 0:
            return [*chain[:-1], chain[-1]._replace(stop=chain[-1].stop + missing)]
        chain.append(Stretch(episode, 0, lengths[episode]))
    raise AssertionError  # every episode has a tick
