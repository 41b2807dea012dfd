"""The command `ttm study minigrid`, and its bot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ttm.policy import UserError
from ttm.training import cli

pytest.importorskip("minigrid")

from ttm.training.study import minigrid, minigrid_study
from ttm.training.study.babyai import BoundedPlan, babyai_environment
from ttm.training.study.minigrid import GaveUp, record
from ttm.training.study.minigrid_study import (
    EFFORTS,
    ActingResult,
    CoreResult,
    StudyMinigridCommand,
)

LEVEL = "GoToObjS4"
"""The smallest level: a room of four tiles and one object."""
WIDTH = 16


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minigrid, "SEEDS_A_FILE", 8)


def test_no_episode_has_the_seed_of_a_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(
        policy: Any, vocabulary: Any, level: str, seeds: Any, sample: Any
    ) -> list[tuple[bool, int]]:
        asked.extend(seeds)
        return [(True, 1) for _ in seeds]

    monkeypatch.setattr(minigrid_study, "roll_out", noted)
    small = "--demonstrations 4 --steps 1 --episodes 3 --width 16"
    command = ["study", "minigrid", "--level", LEVEL, "--cache", str(tmp_path)]
    assert cli.main([*command, *small.split(), "--core", "lstm"]) == 0
    assert asked == [10**8, 10**8 + 1, 10**8 + 2] * 2  # the best action, and drawn ones
    # The seeds of demonstrations begin at 0, and the bot solves most of them.
    assert max(effort.demonstrations for effort in EFFORTS.values()) < min(asked) / 100


def test_an_unknown_level_is_an_error() -> None:
    assert babyai_environment("GoToObjS6").unwrapped.spec.id == "BabyAI-GoToObjS6-v1"
    with pytest.raises(UserError, match=r"--level is 'GotoLocl'; give one of .*GoToLocal"):
        babyai_environment("GotoLocl")


def test_without_minigrid_one_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(name="minigrid")

    monkeypatch.setattr(cli, "import_module", absent)
    assert cli.main(["study", "minigrid"]) == cli.EXIT_USER_ERROR
    assert "ttm-policy-stack[babyai]" in capsys.readouterr().err


def test_a_size_that_is_too_small_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "minigrid", "--episodes", "0"]) == cli.EXIT_USER_ERROR
    assert "--episodes is 0" in capsys.readouterr().err


def test_the_command_trains_evaluates_and_keeps_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = f"--demonstrations 8 --steps 2 --episodes 4 --width {WIDTH}".split()
    common = [*small, "--level", LEVEL, "--cache", str(tmp_path / "runs")]
    assert cli.main(["study", "minigrid", *common, "--core", "none", "lstm"]) == 0
    first = capsys.readouterr()
    assert all(core in first.out for core in ("none", "lstm"))
    assert "step 2 of 2" in first.err
    figures = tmp_path / "out" / "figures.json"
    assert (
        cli.main(["study", "minigrid", *common, "--core", "none", "tlb", "--json", str(figures)])
        == 0
    )
    second = capsys.readouterr()
    assert "none: step" not in second.err  # known from before
    written = json.loads(figures.read_text())
    assert {result["core"] for result in written["results"]} == {"none", "lstm", "tlb"}
    for result in written["results"]:
        assert {way: len(acting["success"]) for way, acting in result["acting"].items()} == {
            "best": 4,
            "drawn": 4,
        }
    assert written["settings"]["demonstrations"] == 8


def test_the_table_tests_each_core_against_the_one_without_memory() -> None:
    def result(core: str, success: list[bool]) -> CoreResult:
        acting = {"best": ActingResult(success, [3] * len(success), 1.0)}
        return CoreResult(core, {}, 1, 1, 0.1, 1.0, acting)

    results = [result("tlb", [True] * 10), result("none", [True] * 2 + [False] * 8)]
    table = StudyMinigridCommand().table(results, "best")
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["p"] == ["0.008", "—"]
    assert cells["success in %"] == ["100.0 (72.2 to 100.0)", "20.0 (5.7 to 51.0)"]


@pytest.mark.parametrize(
    ("level", "seed"), [("Unlock", 63), ("GoToImpUnlock", 6), ("GoToImpUnlock", 14)]
)
def test_a_bot_that_plans_for_ever_is_stopped(level: str, seed: int) -> None:
    shown = record(StudyMinigridCommand(level), [seed])
    assert (len(shown), shown.skipped.tolist()) == (0, [seed])


def test_a_plan_counts_looks_since_it_was_told_to() -> None:
    plan = BoundedPlan([1, 2])
    for _ in range(2):
        plan.reads = 0
        assert [plan[-1] for _ in range(100)] == [2] * 100
    with pytest.raises(GaveUp):
        plan[-1]


@pytest.mark.parametrize(
    ("level", "seeds"), [("GoToLocal", range(10)), ("GoToSeqS5R2", range(4)), ("Unlock", range(2))]
)
def test_the_bounded_bot_does_what_minigrids_does(level: str, seeds: range) -> None:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    asked = StudyMinigridCommand(level)
    environment = asked.environment()
    for seed in seeds:
        ours = record(asked, [seed])
        environment.reset(seed)
        bot, theirs, over = BabyAIBot(environment.unwrapped), [], False
        while not over:
            theirs.append(int(bot.replan(theirs[-1] if theirs else None)))
            _, _, over = environment.step(theirs[-1])
        assert len(ours) == 1
        assert ours.actions.tolist() == theirs
