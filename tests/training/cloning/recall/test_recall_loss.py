"""The recall loss falls if and only if the core remembers; a sight memory learns what will be gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from ttm.datasets import EpisodeDataset, EpisodeWriter, open_dataset
from ttm.policy import PRESETS, Policy, PolicySpec, UserError, load_checkpoint
from ttm.policy.inputs import FeatureMaps
from ttm.policy.sight import EVENTS, STORED, SightMemory
from ttm.training.data import FeatureCache
from ttm.training.frozen_vision import EpisodeFeatures, tick_codes
from ttm.training.losses import (
    RecallLoss,
    RecallTargets,
    learn_memory,
    will_be_gone,
)
from ttm.training.train import TrainCommand, assembled

TICKS = 6


@pytest.fixture(scope="module")
def cue(tmp_path_factory: pytest.TempPathFactory, spec: PolicySpec) -> Path:
    """Twelve episodes that begin with one of three frames, and look alike from then on."""
    folder = tmp_path_factory.mktemp("cue")
    return written(folder, spec, [0, 1, 2] * 4)


def written(folder: Path, spec: PolicySpec, first_scenes: list[int]) -> Path:
    frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    for number, scene in enumerate(first_scenes):
        with EpisodeWriter(folder / f"{number}.hdf5", spec) as writer:
            for tick in range(TICKS):
                frame = frames[scene if tick == 0 else 3]
                seen = {"head": frame, "wrist": frames[3], "joints": np.zeros(2, np.float32)}
                writer.append(seen, [0.1 * (tick % 2), 0, 0], timestamp_s=float(tick))
            writer.finish(instruction="wait", embedding=np.eye(384)[0])
    return folder


def features_of(episodes: EpisodeDataset, spec: PolicySpec) -> EpisodeFeatures:
    torch.manual_seed(0)
    return FeatureCache(Policy(spec, PRESETS["tiny"]), spec.cameras).features(episodes)


def test_codes_tell_scenes_apart(cue: Path, spec: PolicySpec) -> None:
    episodes = open_dataset(cue)
    seen = features_of(episodes, spec).seen()
    codes = tick_codes(seen, [TICKS] * 12, seed=0)
    assert codes.shape == (12 * TICKS, 3)  # three directions: from each first frame to the other
    assert torch.equal(codes, tick_codes(seen, [TICKS] * 12, seed=0))
    by_episode = codes.view(12, TICKS, 3)
    torch.testing.assert_close(by_episode[:, 1:], by_episode[:1, 1:2].expand(12, TICKS - 1, 3))
    shown = by_episode[:, 0] - by_episode[:, 1]
    torch.testing.assert_close(shown[0], shown[3])
    assert min(float((shown[0] - shown[i]).norm()) for i in (1, 2)) > 1
    pairs = (by_episode[:, :, None] - by_episode[:, None]).reshape(-1, 3)
    spread = (pairs.T @ pairs / len(pairs)).diagonal()
    assert float(spread.max()) == pytest.approx(1, rel=0.15)


def test_episodes_in_which_nothing_changes_are_told(tmp_path: Path, spec: PolicySpec) -> None:
    episodes = open_dataset(written(tmp_path, spec, [3, 3]))
    with pytest.raises(UserError, match="needs frames that differ within an episode"):
        tick_codes(features_of(episodes, spec).seen(), [TICKS] * 2, seed=0)


def test_padding_does_not_count() -> None:
    torch.manual_seed(0)
    loss, outputs, targets = RecallLoss(8, 4, 2.0), torch.randn(2, 3, 8), torch.randn(2, 3, 4)
    valid = torch.tensor([[True, True, False], [True, True, True]])
    before = loss(outputs, targets, valid)
    changed = torch.where(valid[..., None], targets, 100.0)
    after = loss(outputs, changed, valid)
    assert torch.equal(before["recall"], after["recall"])
    assert before["recall_ratio"] > 0
    told = loss.mlp(outputs)
    nothing = torch.nn.functional.smooth_l1_loss(torch.zeros_like(targets[valid]), targets[valid])
    error = torch.nn.functional.smooth_l1_loss(told[valid], targets[valid])
    torch.testing.assert_close(before["recall_ratio"], error / nothing)
    assert float(loss(outputs, torch.zeros_like(targets), valid)["recall_ratio"]) == 1


def test_a_sight_memory_learns_what_will_be_gone(cue: Path, spec: PolicySpec) -> None:
    """It opens at the first frame, whichever that is, and at no other; nothing else of the policy changes."""
    episodes, config = open_dataset(cue), replace(PRESETS["tiny"], sight_tokens=3)
    torch.manual_seed(0)
    policy = Policy(spec, config)
    features = FeatureCache(policy, spec.cameras).features(episodes)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    memory = policy.sight
    assert memory is not None
    lessons = list(learn_memory(memory, features.by_sight, [[TICKS]] * 12, steps=600, seed=0))
    assert lessons[-1] == (1.0, 0.0)
    changed = {n for n, v in policy.state_dict().items() if not torch.equal(v, before[n])}
    assert {name.split(".")[0] for name in changed} == {"sight"}
    assert not any(each.requires_grad or each.grad is not None for each in memory.selector())
    ticks = torch.arange(12 * TICKS).view(12, TICKS)
    seen, known = features.by_sight(ticks), features.written_by(memory).by_sight(ticks)
    tokens, last = memory(seen.maps, seen.index, memory.initial_state(12), None)
    memory.look.register_forward_hook(lambda *given: looks.append(given[1]))
    looks: list[object] = []
    given = (known.maps, known.index, memory.initial_state(12), None, *known.to_write)
    torch.testing.assert_close(memory(*given)[0], tokens)
    assert len(looks) == 1  # to find: what is written is known
    assert last[EVENTS].tolist() == [1.0] * 12
    held = last[STORED][:, 0]
    torch.testing.assert_close(held[:3].repeat(4, 1), held)
    assert torch.cdist(held[:3], held[:3])[0, 1:].min() > 0.5


def test_motion_before_a_stand_still_teaches_nothing(cue: Path, spec: PolicySpec) -> None:
    """Motion after it teaches that nothing is to be kept."""
    config = replace(PRESETS["tiny"], sight_tokens=3)
    policy = Policy(spec, config)
    assert policy.sight is not None
    features = FeatureCache(policy, spec.cameras).features(open_dataset(cue))
    looked: list[Tensor] = []

    def look(ticks: Tensor) -> FeatureMaps:
        looked.append(ticks)
        return features.by_sight(ticks)

    taught = {}
    for stands in ((4, 1, 1), (1, 1, 4)):
        shown, _ = next(learn_memory(policy.sight, look, [stands] * 12, steps=600, seed=0))
        taught[np.isnan(shown)] = set((looked[-1] % TICKS).flatten().tolist())
    assert taught == {False: {0, 1, 2, 3, 4, 5}, True: {2, 3, 4, 5}}


def test_what_is_seen_again_at_the_end_will_not_be_gone() -> None:
    """It may have moved by a cell, as the camera shakes. The last quarter tells, at most its last ticks."""
    torch.manual_seed(0)
    wall, thing = torch.randn(4, 8, 8), 5 * torch.randn(4, 2, 2)
    maps = wall.repeat(16, 1, 1, 1)
    maps[:5, :, 2:4, 2:4] = thing
    maps[12:] = maps[12:].roll(1, dims=3)
    gone = will_be_gone(maps).view(16, 8, 8)
    inner = torch.zeros(8, 8, dtype=torch.bool)
    inner[2:4, 2:4] = True
    assert torch.equal(gone[:5, :, 1:7], inner[:, 1:7].expand(5, 8, 6))
    assert not gone[9:, :, 1:7].any()  # what leaves or enters the frame aside
    maps[15, :, 2:4, 2:4], maps[15, :, 5:7, 5:7] = thing, thing  # the robot still stands at "go"
    again = will_be_gone(maps).view(16, 8, 8)
    assert torch.equal(again[:15], gone[:15])
    assert not again[15].any()


@pytest.mark.parametrize("seed", range(2))
def test_what_stands_alone_is_told_from_what_stands_among_others(seed: int) -> None:
    """A thing is kept while it is shown alone, and not when it is back in its place beside two others."""
    torch.manual_seed(seed)
    wall, things = torch.randn(8, 16, 16), 2 * torch.randn(3, 8)
    maps = wall.repeat(10, 1, 1, 1)  # three with one thing, six orders of three, and none
    for shown, order in enumerate(permutations(range(3))):
        maps[shown % 3, :, 8, 8] = things[shown % 3]
        maps[3 + shown, :, 8, 6:11:2] = things[list(order)].T
    episodes = [[shown] * 5 + [9] * 5 + [go] * 10 for shown in range(3) for go in range(3, 9)]
    rows = torch.tensor(episodes).flatten()
    memory = SightMemory(16, 2, channels=8)
    stands = [[10, *[1] * 10]] * len(episodes)
    for _ in learn_memory(
        memory, lambda t: FeatureMaps(maps, rows[t]), stands, steps=600, seed=seed
    ):
        pass
    opens = memory.opens(memory.logits(memory.normalized(maps)))
    assert opens.tolist() == [True] * 3 + [False] * 7


def test_a_memory_that_is_new_needs_frozen_vision(
    cue: Path,
    command: Callable[..., TrainCommand],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"data": (str(cue),), "sight_tokens": 2, "window": "episode"}
    with pytest.raises(UserError, match="from frozen vision; give --freeze-vision, or --init"):
        command(**given, steps=1).run()
    first = command(data=(str(cue),), steps=1, out=tmp_path / "first")
    assert first.run() == 0
    frozen = {"init": first.out / "last.safetensors", "freeze_vision": True}
    assert command(**given, **frozen, dry_run=True).run() == 0
    told = capsys.readouterr().err
    assert "what the memory keeps is learned before: about" in told
    assert "the memory opens" not in told  # after a twentieth of its lessons
    learned = command(**given, **frozen, steps=1, out=tmp_path / "learned")
    assert learned.run() == 0
    assert (
        "the memory opens at 100% of the frames that show what will be gone"
        in capsys.readouterr().err
    )
    with pytest.MonkeyPatch.context() as patch:
        nothing = torch.zeros(1, dtype=torch.bool)
        patch.setattr("ttm.training.losses.will_be_gone", lambda _: nothing)
        assert command(**given, **frozen, steps=1, out=tmp_path / "closed").run() == 0
    assert "then gone while the robot stands: the memory stays closed" in capsys.readouterr().err
    again = command(**given, init=learned.out / "last.safetensors", steps=1, out=tmp_path / "again")
    assert again.run() == 0
    frozen["init"] = learned.out / "last.safetensors"
    made = assembled(command(**given, **frozen, steps=1), Console(quiet=True)).source.features
    assert made is not None
    assert made.to_write  # so that no step makes it again
    assert "the memory opens" not in capsys.readouterr().err


@pytest.mark.parametrize(("core", "falls"), [("lstm", True), ("none", False)])
def test_the_ratio_falls_where_the_core_knows(
    command: Callable[..., TrainCommand],
    cue: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    core: str,
    falls: bool,
) -> None:
    monkeypatch.setattr("ttm.training.trainer.LOG_EVERY", 5)
    first = command(data=(str(cue),), steps=1, out=tmp_path / "first")
    first.run()
    training = command(
        data=(str(cue),),
        init=first.out / "last.safetensors",
        core=core,
        freeze_vision=True,
        window="episode",
        recall_weight=2.0,
        steps=60,
        batch_size=6,
        learning_rate=3e-3,
    )
    assert training.run() == 0
    events = EventAccumulator(str(training.out / "tensorboard"))
    events.Reload()
    ratios = [event.value for event in events.Scalars("train/recall_ratio")]
    assert ratios[0] > 0.6
    # What all scenes have in common needs no memory.
    assert (ratios[-1] < 0.15) == falls
    policy, _ = load_checkpoint(training.out / "last.safetensors")
    assert not any("recall" in name for name in policy.state_dict())


LENGTHS = [5, 3]
STANDS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
"""The first episode moves after its third tick, the second one before its last."""


@pytest.fixture
def codes() -> torch.Tensor:
    """Codes (ticks, C) of two episodes of five and three ticks, with small numbers."""
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def by_hand(codes: torch.Tensor, first: int, tick: int) -> torch.Tensor:
    """The difference to `tick` of the farthest code of the same stand-still since `first`."""
    same = [s for s in range(first, tick + 1) if STANDS[s] == STANDS[tick]]
    if len(same) == 1:
        return torch.full((codes.shape[1],), torch.nan)
    differences = [codes[s] - codes[tick] for s in same]
    return max(differences, key=lambda each: float(each.norm()))


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_the_past_begins_with_stand_still_window_and_episode(codes: torch.Tensor) -> None:
    targets = RecallTargets(codes, LENGTHS, STANDS)
    window = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 4]])
    for whole_past in (False, True):
        found = targets.at(window, whole_past=whole_past)
        for row in range(2):
            first = 0 if whole_past else int(window[row, 0])
            for place, tick in enumerate(window[row, :4].tolist()):
                assert_equal(found[row, place], by_hand(codes, first, tick))
    assert_equal(
        targets.at(torch.tensor([[5, 6, 7]]))[0, :, 0].isnan(), torch.tensor([True, False, True])
    )


def test_what_is_still_seen_is_no_target() -> None:
    codes = torch.tensor([[0.0], [3.0], [3.0]])
    found = RecallTargets(codes, [3], torch.zeros(3)).at(torch.arange(3)[None])[0, :, 0]
    assert_equal(found, torch.tensor([torch.nan, -3.0, -3.0]))


def test_a_long_past_is_searched_in_parts(
    codes: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = torch.arange(5)[None]
    whole = RecallTargets(codes, LENGTHS, STANDS).at(window)
    monkeypatch.setattr("ttm.training.losses.ROWS_AT_ONCE", 2)
    assert_equal(RecallTargets(codes, LENGTHS, STANDS).at(window), whole)
