"""What the studies of MiniGrid share: policy, training, roll-outs, sizes, kept results, the plot."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from success_table import main

from ttm.policy import UserError
from ttm.policy.cores.registry import NAMES
from ttm.training import cli

pytest.importorskip("minigrid")

from ttm.sim.results import Rate
from ttm.training.console import write_given
from ttm.training.sequence_model import num_parameters
from ttm.training.study.minigrid import (
    NO_LOSS,
    NUM_TILES,
    UNKNOWN,
    Demonstrations,
    EpisodeSampler,
    MinigridPolicy,
    Vocabulary,
    clone,
    record,
    roll_out,
)
from ttm.training.study.minigrid_study import (
    ActingResult,
    CoreResult,
    StudyMinigridCommand,
    draw_panels,
    equal_core,
    load_result,
    panels_of,
)

SMALL = StudyMinigridCommand("GoToLocalS5N2")
WIDTH = 16


@pytest.fixture(scope="module")
def recorded() -> Demonstrations:
    return record(StudyMinigridCommand("GoToLocal"), range(12))


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
        whole, _, _ = policy(instructions, batch.which, batch.tiles, batch.directions)
        state = policy.core.initial_state(len(batch.which))
        for tick in range(whole.shape[1]):
            now = slice(tick, tick + 1)
            scores, _, state = policy(
                instructions, batch.which, batch.tiles[:, now], batch.directions[:, now], state
            )
            assert torch.allclose(scores[:, 0], whole[:, tick], atol=1e-9)


def test_the_instruction_changes_the_scores(recorded: Demonstrations) -> None:
    policy, vocabulary = build("none", recorded)
    instructions = policy.instruct(
        vocabulary.sentences(["go to the red ball", "go to the blue key"])
    )
    tiles = torch.from_numpy(vocabulary.tiles(recorded.images[:1])).long().expand(2, 1, -1)
    scores, _, _ = policy(
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
    environment = StudyMinigridCommand("GoToLocal").environment()
    environment.reset(7)
    spinning = roll_out(policy, vocabulary, StudyMinigridCommand("GoToLocal"), [7, 8])
    assert set(spinning) <= {(False, environment.max_steps), (True, 1)}
    drawn = [
        roll_out(policy, vocabulary, StudyMinigridCommand("GoToLocal"), [7, 8], sample=0)
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


def test_acting_with_others_is_as_acting_alone(recorded: Demonstrations) -> None:
    """Episodes that end leave the batch; the others keep their own state and instruction."""
    policy, vocabulary = build("lstm", recorded)
    batches = EpisodeSampler(recorded, vocabulary, ticks=200).endless(0)
    for _ in clone(policy, batches, steps=120, learning_rate=3e-3, report_every=120):
        pass
    together = roll_out(policy, vocabulary, SMALL, range(14))
    assert together == [roll_out(policy, vocabulary, SMALL, [seed])[0] for seed in range(14)]
    assert len({steps for _, steps in together}) > 1


@pytest.mark.parametrize("core", ["lstm", "tlb"])
def test_acting_carries_the_memory_from_tick_to_tick(
    core: str, recorded: Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of an episode are those of one pass over it, even if others leave the batch."""
    policy, vocabulary = build(core, recorded)
    real, ticks = policy.forward, []

    def watched(instructions: Any, which: Any, tiles: Any, directions: Any, state: Any) -> Any:
        scores, *rest = real(instructions, which, tiles, directions, state)
        ticks.extend(zip(which.tolist(), tiles, directions, scores, strict=True))
        return scores, *rest

    monkeypatch.setattr(policy, "forward", watched)
    seeds = [0, 1, 2, 3]
    outcomes = roll_out(policy, vocabulary, SMALL, seeds, sample=0)
    assert len({steps for _, steps in outcomes}) > 1
    environment = SMALL.environment()
    sentences = vocabulary.sentences([environment.reset(seed).mission for seed in seeds])
    for episode, (_, steps) in enumerate(outcomes):
        tiles, directions, scores = (
            torch.cat(parts)
            for parts in zip(*(t[1:] for t in ticks if t[0] == episode), strict=True)
        )
        assert len(scores) == steps > 1
        with torch.no_grad():
            at_once, _, _ = real(
                policy.instruct(sentences),
                torch.tensor([episode]),
                tiles[None],
                directions[None],
                None,
            )
        torch.testing.assert_close(at_once[0], scores, rtol=0, atol=1e-4)


def test_training_lowers_the_loss(recorded: Demonstrations) -> None:
    policy, vocabulary = build("tlb", recorded)
    batches = EpisodeSampler(recorded, vocabulary, ticks=200)
    everything = batches.batch(np.arange(len(recorded)))
    before = policy.loss(everything).item()
    steps = [
        p.steps for p in clone(policy, batches.endless(0), 25, learning_rate=3e-3, report_every=10)
    ]
    assert steps == [10, 20, 25]
    assert policy.loss(everything).item() < 0.7 * before


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


def test_a_damaged_result_is_told(tmp_path: Path) -> None:
    result = CoreResult("none", {}, 1, 1, 0.1, 1.0, {"best": ActingResult([True], [3], 1.0)})
    path = tmp_path / "none.json"
    acting = {"best": {"success": [True], "lengths": [3], "seconds": 1.0}}
    names = {"core": "none", "config": {}, "parameters": 1, "all_parameters": 1}
    training = {"loss": 0.1, "training_s": 1.0}
    path.write_text(json.dumps({"settings": {}, **names, **training, "acting": acting}))
    assert load_result(path) == result
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match=r"none.json is damaged .*delete it"):
        load_result(path)


def test_a_result_from_before_a_field_existed_is_one_of_its_default() -> None:
    config = equal_core("ttm", WIDTH)
    kept = asdict(config)
    del kept["write"]

    def result(values: dict[str, Any]) -> CoreResult:
        return CoreResult("ttm", values, 1, 1, 0.1, 1.0, {})

    assert result(kept).is_of(config)
    assert not result(kept).is_of(replace(config, memory_size=config.memory_size + 1))
    assert not result(kept).is_of(replace(config, write="concatenate"))


PANELS = {
    "best": {"tlb": Rate(7, 8), "none": Rate(2, 8)},
    "drawn": {"tlb": Rate(8, 8), "none": Rate(0, 8)},
}


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        write_given(tmp_path / "new" / name, draw_panels(PANELS), "--plot")
    first, second = sorted((tmp_path / "new").iterdir())
    assert first.read_bytes() == second.read_bytes()
    assert "best, tlb: 88 % of 8" in first.read_text()


def test_results_become_panels() -> None:
    def result(core: str, success: list[bool]) -> CoreResult:
        acting = ActingResult(success, [3] * len(success), 1.0)
        return CoreResult(core, {}, 1, 1, 0.1, 1.0, {"best": acting})

    results = [result("tlb", [True, True, False]), result("none", [False, True, False])]
    assert panels_of("GoToSeq", results) == {
        "GoToSeq, best action": {"tlb": Rate(2, 3), "none": Rate(1, 3)}
    }


def test_panels_become_a_table_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {"title": "best", "episodes": 8, "successes": {"tlb": 7, "none": 2}}
    (tmp_path / "a.json").write_text(json.dumps([best]))
    other = {"title": "other", "episodes": 4, "successes": {"lstm": 4}}
    (tmp_path / "b.json").write_text(json.dumps([other]))
    main([*(str(tmp_path / name) for name in ("a.json", "b.json", "plot.svg"))])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| in % | best | other |"
    assert rows[2] == "| `tlb` | 88 (53\N{EN DASH}98) |  |"
    assert rows[4] == "| `lstm` |  | 100 (51\N{EN DASH}100) |"
    assert (tmp_path / "plot.svg").is_file()


def test_the_figures_of_peers_become_a_table_of_all_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a memory task, the choices."""
    found = [
        {"variant": policy, "task": task, "each": each}
        for policy, task, each in (
            ("act", "pick", "0010"),
            ("ours", "recall", "0000"),
            ("ours", "recall, choice", "1100"),
            ("ours", "pick", "1110"),
            ("ours", "pick", "1111"),
        )
    ]
    (tmp_path / "figures.json").write_text(json.dumps({"rows": [], "choices": found}))
    main([str(tmp_path / "figures.json")])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| in % | pick | recall, choice |"
    assert rows[2] == "| `ours` | 88 (53\N{EN DASH}98) | 50 (15\N{EN DASH}85) |"
    assert rows[3] == "| `act` | 25 (5\N{EN DASH}70) |  |"


def test_a_plot_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*give another file with --plot"):
        write_given(tmp_path / "file" / "plot.svg", draw_panels(PANELS), "--plot")
    assert cli.main(["study", "minigrid", "--plot", "plot.png"]) == cli.EXIT_USER_ERROR
    assert "--plot is plot.png; give a file that ends with .svg" in capsys.readouterr().err
