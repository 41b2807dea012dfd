"""Wilson's interval and McNemar's exact test, against published and hand-computed values."""

from __future__ import annotations

import pytest

from ttm.sim.results import mcnemar_exact, wilson_interval


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe (1998), Table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (50, 50, 0.9287, 1.0),
    ],
)
def test_wilson_interval_as_published(
    successes: int, episodes: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=6e-5)


def test_wilson_interval_is_symmetric_and_within_bounds() -> None:
    for episodes in range(1, 40):
        for successes in range(episodes + 1):
            low, high = wilson_interval(successes, episodes)
            assert 0 <= low <= successes / episodes <= high <= 1
            mirrored = wilson_interval(episodes - successes, episodes)
            assert (low, high) == pytest.approx((1 - mirrored[1], 1 - mirrored[0]))


def test_no_episodes_say_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 successes of 3"):
        wilson_interval(5, 3)


def test_mcnemar_counts_only_states_that_differ() -> None:
    first = [True] * 30 + [True] * 1 + [False] * 9 + [False] * 10
    second = [True] * 30 + [False] * 1 + [True] * 9 + [False] * 10
    test = mcnemar_exact(first, second)
    assert (test.both, test.only_first, test.only_second, test.neither) == (30, 1, 9, 10)
    assert test.p_value == pytest.approx(2 * (1 + 10) / 2**10)


@pytest.mark.parametrize("outcomes", [[], [True, False], [True] * 5])
def test_mcnemar_of_equal_outcomes_is_one(outcomes: list[bool]) -> None:
    assert mcnemar_exact(outcomes, outcomes).p_value == 1.0


def test_mcnemar_needs_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        mcnemar_exact([True, False], [True])
