"""The policy of `ttm study babyai`, its training, its roll-outs, and the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.policy.cores.registry import NAMES
from ttm.policy.errors import UserError
from ttm.training import cli

pytest.importorskip("minigrid")

from ttm.training.study.babyai import demonstrations as babyai_demonstrations
from ttm.training.study.babyai import options as babyai_options
from ttm.training.study.babyai import train_and_evaluate as babyai_train_and_evaluate
from ttm.training.study.babyai.cloning import NO_LOSS, EpisodeSampler, clone, cloning_loss
from ttm.training.study.babyai.core_sizes import equal_core, num_parameters
from ttm.training.study.babyai.demonstrations import Demonstrations, record
from ttm.training.study.babyai.environment import BabyaiEnvironment, environment_id
from ttm.training.study.babyai.policy import NUM_TILES, UNKNOWN, MinigridPolicy, Vocabulary
from ttm.training.study.babyai.report import result_table
from ttm.training.study.babyai.results import (
    ActingResult,
    BabyaiSettings,
    CoreResult,
    ResultFolder,
)
from ttm.training.study.babyai.rollout import EpisodeResult, roll_out

LEVEL = "GoToObjS4"
"""The smallest level: a room of four tiles and one object."""
WIDTH = 16


@pytest.fixture(scope="module")
def recorded() -> Demonstrations:
    return record("GoToLocal", range(12))


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(babyai_demonstrations, "SEEDS_A_FILE", 8)


def test_a_pass_has_every_tick_once(recorded: Demonstrations) -> None:
    vocabulary = Vocabulary.of(recorded.missions, recorded.images)
    batches = EpisodeSampler(recorded, vocabulary, ticks=20)
    passed = list(batches.one_pass(np.random.default_rng(0)))
    assert sorted(np.concatenate(passed).tolist()) == list(range(len(recorded)))
    first = np.cumsum(recorded.lengths) - recorded.lengths
    tiles = vocabulary.tiles(recorded.images)
    for episodes in passed:
        batch = batches.batch(episodes)
        assert batch.actions.numel() <= max(20, int(recorded.lengths.max()))
        for row, episode in enumerate(episodes):
            length, ticks = (
                recorded.lengths[episode],
                slice(first[episode], first[episode] + recorded.lengths[episode]),
            )
            assert batch.actions[row, :length].tolist() == recorded.actions[ticks].tolist()
            assert (batch.actions[row, length:] == NO_LOSS).all()
            assert (batch.tiles[row, :length].numpy() == tiles[ticks]).all()
            assert batch.directions[row, :length].tolist() == recorded.directions[ticks].tolist()
            words = [
                vocabulary.words[number - 1]
                for number in batch.sentences[batch.which[row]]
                if number
            ]
            assert " ".join(words) == recorded.missions[episode]


def test_every_core_meets_the_same_batches(recorded: Demonstrations) -> None:
    vocabulary = Vocabulary.of(recorded.missions, recorded.images)
    first, second = (
        EpisodeSampler(recorded, vocabulary, ticks=20).endless(seed=3) for _ in range(2)
    )
    for _ in range(10):
        one, other = next(first), next(second)
        assert all(map(torch.equal, one, other))


def test_a_vocabulary_numbers_what_was_shown_and_knows_what_was_not() -> None:
    images = np.zeros((1, 7, 7, 3), np.uint8)
    images[0, 2, 3] = (5, 0, 0)
    vocabulary = Vocabulary.of(["go to the key, then go", "go"], images)
    assert vocabulary.words == (",", "go", "key", "the", "then", "to")
    assert vocabulary.sentences(["go to", "key , go there"]).tolist() == [
        [2, 6, 0, 0],
        [3, 1, 2, UNKNOWN],
    ]
    assert np.unique(vocabulary.tiles(images), return_counts=True)[1].tolist() == [NUM_TILES - 1, 1]
    assert vocabulary.tiles(images)[0, 2 * 7 + 3] == 2
    images[0, 0, 0] = (10, 5, 3)  # the largest of each
    assert vocabulary.tiles(images)[0, 0] == UNKNOWN


def build(core: str, shown: Demonstrations) -> tuple[MinigridPolicy, Vocabulary]:
    torch.manual_seed(0)
    vocabulary = Vocabulary.of(shown.missions, shown.images)
    return MinigridPolicy(equal_core(core, WIDTH), vocabulary, WIDTH), vocabulary


@pytest.mark.parametrize("core", NAMES)
def test_ticks_one_by_one_are_as_whole_episodes(core: str, recorded: Demonstrations) -> None:
    policy, vocabulary = build(core, recorded)
    policy.double().eval()
    batch = EpisodeSampler(recorded, vocabulary, ticks=200).batch(np.arange(len(recorded)))
    with torch.inference_mode():
        instructions = policy.instruct(batch.sentences)
        whole, _ = policy(instructions, batch.which, batch.tiles, batch.directions)
        state = policy.core.initial_state(len(batch.which))
        for tick in range(whole.shape[1]):
            now = slice(tick, tick + 1)
            scores, state = policy(
                instructions, batch.which, batch.tiles[:, now], batch.directions[:, now], state
            )
            assert torch.allclose(scores[:, 0], whole[:, tick], atol=1e-9)


def test_the_instruction_changes_the_scores(recorded: Demonstrations) -> None:
    policy, vocabulary = build("none", recorded)
    instructions = policy.instruct(
        vocabulary.sentences(["go to the red ball", "go to the blue key"])
    )
    tiles = torch.from_numpy(vocabulary.tiles(recorded.images[:1])).long().expand(2, 1, -1)
    scores, _ = policy(
        instructions, torch.tensor([0, 1]), tiles, torch.zeros(2, 1, dtype=torch.int64)
    )
    assert not torch.allclose(scores[0], scores[1], atol=1e-4)


def test_an_instruction_is_read_the_same_whatever_stands_beside_it(
    recorded: Demonstrations,
) -> None:
    policy, vocabulary = build("none", recorded)
    alone = policy.instruct(vocabulary.sentences(["go to the red ball"]))
    beside = policy.instruct(
        vocabulary.sentences(["go to the red ball", "go to the red ball go to the key"])
    )
    assert torch.allclose(alone.vectors[0], beside.vectors[0], atol=1e-6)
    assert torch.allclose(alone.tiles[0], beside.tiles[0], atol=1e-6)


def test_acting_follows_the_scores_until_every_episode_is_over(recorded: Demonstrations) -> None:
    policy, vocabulary = build("lstm", recorded)
    with torch.no_grad():
        policy.head.bias[0] = 100.0  # turns on the spot for ever
    environment = BabyaiEnvironment("GoToLocal")
    environment.reset(7)
    spinning = roll_out(policy, vocabulary, "GoToLocal", [7, 8])
    assert {(outcome.success, outcome.steps) for outcome in spinning} <= {
        (False, environment.max_steps),
        (True, 1),
    }
    drawn = [roll_out(policy, vocabulary, "GoToLocal", [7, 8], sample=0) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_acting_with_others_is_as_acting_alone(recorded: Demonstrations) -> None:
    """Episodes that end leave the batch; the others keep their own state and instruction."""
    policy, vocabulary = build("lstm", recorded)
    batches = EpisodeSampler(recorded, vocabulary, ticks=200).endless(0)
    for _ in clone(policy, batches, steps=40, learning_rate=3e-3, report_every=40):
        pass
    together = roll_out(policy, vocabulary, "GoToLocalS5N2", range(5))
    assert together == [
        roll_out(policy, vocabulary, "GoToLocalS5N2", [seed])[0] for seed in range(5)
    ]
    assert len({outcome.steps for outcome in together}) > 1


@pytest.mark.parametrize("core", ["lstm", "tlb"])
def test_acting_carries_the_memory_from_tick_to_tick(
    core: str, recorded: Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of an episode are those of one pass over it, even if others leave the batch."""
    policy, vocabulary = build(core, recorded)
    real, ticks = policy.forward, []

    def watched(instructions: Any, which: Any, tiles: Any, directions: Any, state: Any) -> Any:
        scores, after = real(instructions, which, tiles, directions, state)
        ticks.extend(zip(which.tolist(), tiles, directions, scores, strict=True))
        return scores, after

    monkeypatch.setattr(policy, "forward", watched)
    seeds = [0, 1, 2, 3]
    outcomes = roll_out(policy, vocabulary, "GoToLocalS5N2", seeds, sample=0)
    assert len({outcome.steps for outcome in outcomes}) > 1
    environment = BabyaiEnvironment("GoToLocalS5N2")
    sentences = vocabulary.sentences([environment.reset(seed).mission for seed in seeds])
    for episode, outcome in enumerate(outcomes):
        tiles, directions, scores = (
            torch.cat(parts)
            for parts in zip(*(t[1:] for t in ticks if t[0] == episode), strict=True)
        )
        assert len(scores) == outcome.steps > 1
        with torch.no_grad():
            at_once, _ = real(
                policy.instruct(sentences),
                torch.tensor([episode]),
                tiles[None],
                directions[None],
                None,
            )
        torch.testing.assert_close(at_once[0], scores, rtol=0, atol=1e-4)


def test_no_episode_has_the_seed_of_a_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(
        policy: Any, vocabulary: Any, level: str, seeds: Any, sample: Any
    ) -> list[EpisodeResult]:
        asked.extend(seeds)
        return [EpisodeResult(True, 1) for _ in seeds]

    monkeypatch.setattr(babyai_train_and_evaluate, "roll_out", noted)
    small = "--demonstrations 4 --steps 1 --batch-ticks 16 --episodes 3 --width 16 --workers 1"
    command = ["study", "babyai", "--level", LEVEL, "--cache", str(tmp_path), "--actions", "best"]
    assert cli.main([*command, *small.split(), "--core", "lstm"]) == 0
    assert asked == [10**8, 10**8 + 1, 10**8 + 2]
    # The seeds of demonstrations begin at 0, and the bot solves most of them.
    assert (
        max(babyai_options.EFFORTS[level].demonstrations for level in babyai_options.EFFORTS)
        < min(asked) / 100
    )


def test_training_lowers_the_loss(recorded: Demonstrations) -> None:
    policy, vocabulary = build("tlb", recorded)
    batches = EpisodeSampler(recorded, vocabulary, ticks=200)
    everything = batches.batch(np.arange(len(recorded)))
    before = cloning_loss(policy, *everything).item()
    steps = [
        p.steps for p in clone(policy, batches.endless(0), 25, learning_rate=3e-3, report_every=10)
    ]
    assert steps == [10, 20, 25]
    assert cloning_loss(policy, *everything).item() < 0.7 * before


@pytest.mark.parametrize("width", [16, 64, 128])
def test_all_cores_have_the_same_number_of_parameters(width: int) -> None:
    sizes = {name: num_parameters(equal_core(name, width), width) for name in NAMES}
    assert max(sizes.values()) < 1.02 * min(sizes.values()), sizes


def test_a_core_keeps_the_mlps_that_it_is_given_and_cannot_be_too_large() -> None:
    assert equal_core("tlb", 64, ["mlp_size=8"]).mlp_size == 8
    with pytest.raises(
        UserError, match=r"core tlb has .* more than the .* give smaller --core-options"
    ):
        equal_core("tlb", 64, ["num_layers=8"])


def test_an_unknown_level_names_the_nearest() -> None:
    assert environment_id("GoToObjS6") == "BabyAI-GoToObjS6-v1"
    with pytest.raises(UserError, match=r"'GotoLocl'.*nearest are .*GoToLocal"):
        environment_id("GotoLocl")


def test_without_minigrid_one_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(babyai_options, "find_spec", lambda name: None)
    assert cli.main(["study", "babyai"]) == cli.EXIT_USER_ERROR
    assert "pip install 'minigrid" in capsys.readouterr().err


def test_a_size_that_is_too_small_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "babyai", "--episodes", "0"]) == cli.EXIT_USER_ERROR
    assert "--episodes is 0" in capsys.readouterr().err


def test_the_command_trains_evaluates_and_keeps_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {
        "demonstrations": 8,
        "steps": 2,
        "batch-ticks": 16,
        "episodes": 4,
        "width": WIDTH,
        "workers": 1,
    }
    common = [
        f"--{name}={value}"
        for name, value in {**small, "level": LEVEL, "cache": tmp_path / "runs"}.items()
    ]
    assert cli.main(["study", "babyai", *common, "--core", "none", "lstm"]) == 0
    first = capsys.readouterr()
    assert all(core in first.out for core in ("none", "lstm"))
    assert "step 2 of 2" in first.err
    figures = tmp_path / "out" / "figures.json"
    assert (
        cli.main(["study", "babyai", *common, "--core", "none", "tlb", "--json", str(figures)]) == 0
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

    table = result_table(
        [result("tlb", [True] * 10), result("none", [True] * 2 + [False] * 8)], "best"
    )
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["p"] == ["0.008", "—"]
    assert cells["success\n%"] == ["100.0", "20.0"]


def test_a_damaged_result_is_told(tmp_path: Path) -> None:
    settings = BabyaiSettings("GoToLocal", 1, 1, 1, 1e-3, 16, 0, 1, ("best",), "3.2.0")
    results = ResultFolder(tmp_path, settings)
    results.save(CoreResult("none", {}, 1, 1, 0.1, 1.0, {"best": ActingResult([True], [3], 1.0)}))
    assert results.find("none") == results.all()[0]
    (path,) = tmp_path.rglob("none.json")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match=r"none.json is damaged .*delete it"):
        results.find("none")
