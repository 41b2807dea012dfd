"""Results: rates, Wilson's interval, McNemar's exact test, paired comparison, and `result.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ttm.policy import UserError
from ttm.sim import Evaluation, load_evaluation
from ttm.sim.results import TaskResult, compare, mcnemar_exact, wilson_interval
from ttm.sim.rollout import Outcome


def result(successes: list[bool], first_seed: int = 0, instruction: str = "go") -> Evaluation:
    outcomes = tuple(
        Outcome("pick", first_seed + i, instruction, success, 10, None)
        for i, success in enumerate(successes)
    )
    return Evaluation("none", None, first_seed, None, {"pick": TaskResult("pick", outcomes)})


def test_compare_takes_only_states_that_both_started_from() -> None:
    test = compare(result([True, False, True]), result([True, True, True, True], first_seed=1))[
        "pick"
    ]
    assert (test.both, test.only_first, test.only_second, test.neither) == (1, 0, 1, 0)
    assert compare(result([True]), result([True], instruction="go elsewhere")) == {}


def test_result_survives_the_file(tmp_path: Path) -> None:
    evaluation = result([True, False])
    evaluation.save(tmp_path)
    assert load_evaluation(tmp_path) == evaluation
    assert load_evaluation(tmp_path / "result.json") == evaluation


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": 3}', "\xff"])
def test_another_file_is_no_evaluation(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"result\.json"):
        load_evaluation(tmp_path)


def test_median_is_of_successes() -> None:
    outcomes = [
        Outcome("pick", i, "go", i < 4, ticks, None) for i, ticks in enumerate([10, 40, 20, 30, 99])
    ]
    assert TaskResult("pick", tuple(outcomes)).median_ticks == 25
    assert result([False]).tasks["pick"].median_ticks is None


def test_the_environment_is_named_unless_it_is_the_kitchen(tmp_path: Path) -> None:
    """The kitchen's files stay what they were before there were other environments."""
    assert "environment" not in json.loads(result([True]).to_json())
    elsewhere = replace(result([True]), environment="point_env:test/Point-v0")
    elsewhere.save(tmp_path)
    assert load_evaluation(tmp_path) == elsewhere


def test_different_environments_are_not_compared() -> None:
    kitchen = result([True])
    elsewhere = replace(kitchen, environment="point_env:test/Point-v0")
    with pytest.raises(UserError, match="ttm/Kitchen-v0 and point_env:test/Point-v0"):
        compare(kitchen, elsewhere)
    assert compare(elsewhere, replace(elsewhere, environment="test/Point-v0"))["pick"].both == 1


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
