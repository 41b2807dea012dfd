"""Windows in sections: the same ones in each pass, near those that overlap, and not in one batch."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest

from ttm.datasets import WindowSampler
from ttm.datasets.samplers import SECTION, DataShares, Mix, Sections

LENGTHS = (70, 40, 3, 90, 55, 200)
EPISODES = np.repeat(np.arange(6), LENGTHS)
FIRST_TICKS = np.concatenate([np.arange(length) for length in LENGTHS])
APART, SIZE = 3, 4


def sampler(
    *, sections: bool = True, first_batch: int = 0, mix: Mix | None = None
) -> WindowSampler:
    arranged = Sections(EPISODES, FIRST_TICKS, APART) if sections else None
    return WindowSampler(
        len(EPISODES), SIZE, seed=5, first_batch=first_batch, mix=mix, sections=arranged
    )


@pytest.mark.parametrize("shares", [None, (0.7, 0.3)])
def test_a_pass_has_the_windows_that_it_has_without_sections(
    shares: tuple[float, float] | None,
) -> None:
    mix = shares and DataShares((0, 0, 0, 0, 1, 1), shares).of_windows(EPISODES)
    batches = len(EPISODES) // SIZE
    plain, arranged = (
        list(islice(sampler(sections=sections, mix=mix), 3 * batches)) for sections in (False, True)
    )
    for number in range(0, 3 * batches, batches):
        one, other = (sorted(chain(*each[number : number + batches])) for each in (plain, arranged))
        assert one == other
    assert arranged[:batches] != arranged[batches : 2 * batches]


def test_a_resumed_training_goes_on_where_it_was() -> None:
    unbroken = list(islice(sampler(), 250))
    assert list(islice(sampler(first_batch=117), 133)) == unbroken[117:]


def test_windows_that_overlap_come_a_few_batches_later_and_not_in_the_same_one() -> None:
    batches = np.array(list(islice(sampler(), len(EPISODES) // SIZE)))
    places = EPISODES[batches] * 1000 + FIRST_TICKS[batches]
    apart = np.abs(places[:, :, None] - places[:, None, :]) + 1000 * np.eye(SIZE, dtype=int)
    assert (apart < SECTION).any(axis=(1, 2)).mean() < 0.2
    again = np.abs(places[:-APART, :, None] - places[APART:, :, None]).min(axis=2)
    assert (again < SECTION).mean() > 0.8
    for turn in range(1, APART):
        others = np.abs(places[:-turn, :, None] - places[turn:, None, :])
        assert (others < SECTION).mean() < 0.1


def test_sections_begin_at_other_ticks_in_each_pass() -> None:
    sections = Sections(EPISODES, FIRST_TICKS, APART)
    cuts = [sections._sections(np.random.default_rng(number)) for number in range(2)]
    assert not np.array_equal(*cuts)
    for cut in cuts:
        assert cut[0] == 0
        assert set(np.diff(cut)) == {0, 1}
        assert np.bincount(cut).max() == SECTION
        assert all(len(set(EPISODES[cut == each])) == 1 for each in range(cut[-1] + 1))


def test_sections_come_in_random_order() -> None:
    """In the order of the files, a lane would have the ticks of an episode one section after another."""
    batches = np.array(list(islice(sampler(), len(EPISODES) // SIZE)))
    place = EPISODES * 1000 + FIRST_TICKS
    lanes = place[batches[::APART]].T  # (B, batches of the first turn)
    steps = np.diff(lanes, axis=1)
    jumps = steps[np.abs(steps) >= SECTION]  # from a section to the next in its lane
    assert (jumps < 0).any()
    assert (np.abs(jumps) > 1000).any()


def test_fewer_windows_than_lanes_fill_their_batches() -> None:
    few = Sections(np.zeros(6, int), np.arange(6), apart=8)
    batches = list(islice(WindowSampler(6, 4, seed=0, sections=few), 2))
    assert all(len(set(batch)) == 4 for batch in batches)
    (batch,) = islice(WindowSampler(6, 8, seed=0, sections=few), 1)
    assert set(batch) == set(range(6))
