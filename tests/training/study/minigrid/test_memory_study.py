"""`ttm study minigrid` in Memory levels: its options, first weights and tables, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy.cores.registry import NAMES
from ttm.training import cli

pytest.importorskip("minigrid")

from ttm.sim.results import Rate
from ttm.training.study import minigrid
from ttm.training.study.memory import RecallingPolicy, choices
from ttm.training.study.minigrid import EpisodeSampler, MinigridPolicy, Vocabulary, record
from ttm.training.study.minigrid_study import (
    ActingResult,
    CoreResult,
    StudyMinigridCommand,
    equal_core,
)

WIDTH = 16
SMALL = [
    *("--level", "MemoryS7", "--width", str(WIDTH)),
    *("--demonstrations", "8", "--steps", "2", "--episodes", "3"),
]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minigrid, "SEEDS_A_FILE", 8)


def weights_around(core: str, seed: int) -> dict[str, torch.Tensor]:
    """Return the first weights of a policy, without those of its core."""
    recorded = record(StudyMinigridCommand("MemoryS7"), range(4))
    vocabulary = Vocabulary.of(recorded.missions, recorded.images)
    config = equal_core(core, WIDTH)
    torch.manual_seed(seed)
    weights = RecallingPolicy(config, vocabulary, WIDTH, 1.0).state_dict()
    return {name: weight for name, weight in weights.items() if not name.startswith("core.")}


def test_first_weights_around_the_core_are_equal() -> None:
    first = weights_around(NAMES[0], seed=3)
    assert {"head.weight", "recall.layers.0.weight"} <= first.keys()
    for core in NAMES[1:]:
        other = weights_around(core, seed=3)
        assert other.keys() == first.keys()
        assert all(torch.equal(weight, first[name]) for name, weight in other.items())
    assert not torch.equal(weights_around(NAMES[0], seed=4)["head.weight"], first["head.weight"])


def test_without_a_weight_the_actions_alone_are_learned() -> None:
    recorded = record(StudyMinigridCommand("MemoryS7"), range(6))
    vocabulary = Vocabulary.of(recorded.missions, recorded.images)
    policy = RecallingPolicy(equal_core("lstm", WIDTH), vocabulary, WIDTH, 0.0)
    batch = EpisodeSampler(recorded, vocabulary, ticks=100).batch(np.arange(6))
    actions_alone = MinigridPolicy.loss(policy, batch)
    assert torch.equal(policy.loss(batch), actions_alone)
    policy.recall_weight = 2.0
    added = policy.loss(batch) - actions_alone
    added.backward()
    assert 2 * 0.2 < added.item() < 2 * 2
    assert policy.see_tiles.weight.grad.any()  # the loss reaches what comes before the core
    assert policy.head.weight.grad is None or not policy.head.weight.grad.any()


def test_the_way_an_episode_ends_tells_the_choice() -> None:
    acting = ActingResult([True, False, False, True], [5, 6, 245, 245], 1.0)
    assert choices(acting.success, acting.lengths, max_steps=245) == Rate(2, 3)


def test_the_table_has_success_and_choice() -> None:
    def result(core: str, success: list[bool], lengths: list[int]) -> CoreResult:
        return CoreResult(core, {}, 1, 1, 0.1, 1.0, {"best": ActingResult(success, lengths, 1.0)})

    lost = result("none", [True] * 2 + [False] * 8, [5] * 4 + [245] * 6)
    never = result("lstm", [False] * 10, [245] * 10)
    results = [never, lost, result("ttm", [True] * 10, [5] * 10)]
    table = StudyMinigridCommand(level="MemoryS7").table(results, "best")
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["core"] == ["ttm", "none", "lstm"]
    assert cells["success in %"][1] == "20.0 (5.7 to 51.0)"
    assert cells["made"] == ["10", "4", "0"]
    assert cells["right choices in %"] == ["100.0 (72.2 to 100.0)", "50.0 (15.0 to 85.0)", "—"]
    assert cells["p"] == ["0.008", "—", "0.500"]


def test_the_command_compares_variants_of_a_core_and_keeps_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    command = ["study", "minigrid", *SMALL, "--cache", str(tmp_path / "runs")]
    assert cli.main([*command, "--core", "none", "ttm"]) == 0
    assert "ttm: step 2 of 2" in capsys.readouterr().err
    variant = ["--core", "ttm", "--core-options", "write=gated", "memory_size=4"]
    out = ["--json", str(figures), "--plot", str(plot)]
    assert cli.main([*command, *variant, *out]) == 0
    written = json.loads(figures.read_text())
    ours = "ttm write=gated memory_size=4"
    assert {result["core"] for result in written["results"]} == {"none", "ttm", ours}
    assert all(len(each["acting"]["best"]["lengths"]) == 3 for each in written["results"])
    assert plot.is_file()
    capsys.readouterr()
    assert cli.main([*command, "--core", "none", "ttm"]) == 0
    assert "step" not in capsys.readouterr().err  # kept


def test_a_level_that_minigrid_does_not_have_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "minigrid", "--level", "MemoryS8", "--cache", str(tmp_path)]
    assert cli.main(command) == cli.EXIT_USER_ERROR
    assert "--level is 'MemoryS8'; give MemoryS and an odd size" in capsys.readouterr().err
