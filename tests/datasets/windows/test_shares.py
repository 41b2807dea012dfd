"""Shares of data sets in what the samplers draw."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from ttm.datasets import EpisodeSampler, LaneSampler, WindowSampler
from ttm.datasets.samplers import DataShares, Mix

GROUPS = np.array([0] * 4 + [1] * 16)


def test_each_group_has_its_share_of_a_pass_and_repeats_nothing_before_it_is_used_up() -> None:
    mix = Mix(GROUPS, (0.7, 0.3))
    passes = [mix.draw(20, seed=1, number=number).tolist() for number in range(8)]
    for drawn in passes:
        assert sum(item < 4 for item in drawn) == 14
    of_small = Counter(item for drawn in passes for item in drawn if item < 4)
    of_large = Counter(item for drawn in passes for item in drawn if item >= 4)
    assert set(of_small.values()) == {8 * 14 // 4}
    assert set(of_large.values()) == {8 * 6 // 16}
    assert passes[0] != passes[1]
    assert passes[3] == mix.draw(20, seed=1, number=3).tolist()


@pytest.mark.parametrize(("small", "count"), [(0.01, 20), (0.45, 10), (0.5, 1)])
def test_shares_that_fill_no_whole_number_of_items_hold_over_the_passes(
    small: float, count: int
) -> None:
    mix = Mix(GROUPS, (small, 1 - small))
    passes = [GROUPS[mix.draw(count, seed=0, number=number)] for number in range(100)]
    assert all(len(drawn) == count for drawn in passes)
    found = sum(int((drawn == 0).sum()) for drawn in passes)
    assert found == pytest.approx(100 * count * small, abs=1)


def test_windows_are_drawn_by_their_shares_from_any_step_on() -> None:
    shares = DataShares((0, 1, 1), (0.75, 0.25))
    mix = shares.of_windows(np.array([0] * 2 + [1] * 8 + [2] * 6))
    batches = list(islice(WindowSampler(16, 4, seed=3, mix=mix), 12))
    for first in (0, 4, 8):  # a pass is four batches
        drawn = [window for batch in batches[first : first + 4] for window in batch]
        assert sum(window < 2 for window in drawn) == 12
    resumed = WindowSampler(16, 4, seed=3, first_batch=7, mix=mix)
    assert list(islice(resumed, 5)) == batches[7:]


def test_whole_episodes_are_drawn_by_their_shares() -> None:
    lengths = [3, 4, 5, 6, 7, 8, 9, 10]
    mix = DataShares((0,) + (1,) * 7, (0.5, 0.5)).of_episodes()
    batches = list(islice(EpisodeSampler(lengths, 2, seed=3, mix=mix), 8))
    assert [sum(batch.count(0) for batch in part) for part in (batches[:4], batches[4:])] == [4, 4]
    resumed = EpisodeSampler(lengths, 2, seed=3, first_batch=5, mix=mix)
    assert list(islice(resumed, 3)) == batches[5:]


def test_lanes_hold_the_shares_in_ticks() -> None:
    lengths = [40] * 3 + [8] * 30
    mix = DataShares((0,) * 3 + (1,) * 30, (0.5, 0.5)).of_ticks(lengths)
    sampler = LaneSampler(lengths, 4, 2, seed=3, mix=mix)
    ticks = Counter[bool]()
    for places, _ in islice(sampler, 600):
        for episode, first, length in places.tolist():
            ticks[episode < 3] += first + length - max(first, 0)
    assert ticks[True] / ticks.total() == pytest.approx(0.5, abs=0.03)
    resumed = LaneSampler(lengths, 4, 2, seed=3, first_batch=50, mix=mix)
    for (mine, _), (theirs, _) in zip(
        islice(resumed, 5), islice(LaneSampler(lengths, 4, 2, seed=3, mix=mix), 50, 55), strict=True
    ):
        assert np.array_equal(mine, theirs)
