"""Lanes of windows: every tick once in a pass, in order, and the same ones after a resume."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from ttm.datasets import LaneSampler
from ttm.datasets.samplers import LONGEST_EPISODES_IN_A_LANE
from ttm.policy import UserError

LENGTHS = [6, 3, 40, 1, 8, 17, 16]


def one_pass(sampler: LaneSampler) -> torch.Tensor:
    """Return the batches of the first pass, (k, B, 3)."""
    batches = []
    for places, begins in sampler:
        if begins and batches:
            return torch.stack(batches)
        batches.append(places)
    raise AssertionError


def ticks_of(place: torch.Tensor) -> list[tuple[int, int]]:
    episode, first, length = place.tolist()
    return [(episode, tick) for tick in range(max(first, 0), first + length)]


def test_a_lane_holds_episodes_tick_by_tick() -> None:
    for lane in one_pass(LaneSampler(LENGTHS, 4, 3, seed=1)).unbind(1):
        ticks = [tick for place in lane for tick in ticks_of(place)]
        for (episode, tick), following in pairwise(ticks):
            last = tick == LENGTHS[episode] - 1
            assert following[1] == 0 if last else following == (episode, tick + 1)


def test_every_tick_comes_once_a_round_save_those_left_over() -> None:
    sampler = LaneSampler(LENGTHS, 4, 1, seed=2)
    seen = [tick for place in one_pass(sampler)[:, 0] for tick in ticks_of(place)]
    every = [(episode, tick) for episode, length in enumerate(LENGTHS) for tick in range(length)]
    assert sorted(seen) == sorted(every * (len(seen) // len(every)))


def test_windows_begin_at_every_tick_over_the_passes() -> None:
    sampler = LaneSampler([40], 4, 1, seed=3)
    firsts = [int(places[0, 1]) for places, _ in islice(sampler, 300)]
    assert {first % 4 for first in firsts} == {0, 1, 2, 3}
    assert min(firsts) == -3


def test_few_lanes_begin_in_an_episodes_middle() -> None:
    """Lanes are long even if there are fewer windows than lanes."""
    for lengths in ([9, 5], LENGTHS, [300, *[10] * 50]):
        lanes = one_pass(LaneSampler(lengths, 4, 16, seed=4))
        assert len(lanes) >= LONGEST_EPISODES_IN_A_LANE * max(lengths) / 4


def test_a_resumed_sampler_goes_on_where_it_was() -> None:
    unbroken = list(islice(LaneSampler([5, 3, 9], 4, 2, seed=5), 60))
    assert sum(begins for _, begins in unbroken) > 2  # over several passes
    for first in (1, 17, 40):
        resumed = islice(LaneSampler([5, 3, 9], 4, 2, seed=5, first_batch=first), 60 - first)
        for (mine, begins), (theirs, began) in zip(resumed, unbroken[first:], strict=True):
            assert torch.equal(mine, theirs)
            assert begins == began


def test_passes_and_seeds_differ() -> None:
    def firsts(seed: int, batch: int) -> list[int]:
        return (
            next(islice(LaneSampler(LENGTHS, 4, 8, seed=seed), batch, None))[0].flatten().tolist()
        )

    length = len(one_pass(LaneSampler(LENGTHS, 4, 8, seed=0)))
    assert firsts(0, 0) != firsts(1, 0)
    assert firsts(0, 0) != firsts(0, length)


def test_places_are_integers_and_lengths_may_be_an_array() -> None:
    places, begins = next(iter(LaneSampler(np.array(LENGTHS), 4, 2)))
    assert (places.dtype, places.shape, begins) == (torch.int64, (2, 3), True)


def test_impossible_lanes_are_told() -> None:
    with pytest.raises(UserError, match="batch_size is 0"):
        LaneSampler(LENGTHS, 4, 0)
