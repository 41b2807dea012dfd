"""Results of evaluations: rates, paired comparison, and `result.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ttm.policy import UserError
from ttm.sim import Evaluation, load_evaluation
from ttm.sim.results import TaskResult, compare
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
