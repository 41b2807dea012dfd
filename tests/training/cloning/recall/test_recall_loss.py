"""The recall loss falls if and only if the core remembers; its network stays out of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ttm.datasets import EpisodeDataset, EpisodeWriter, open_dataset
from ttm.datasets.dataset import embed_instructions
from ttm.datasets.windows import stand_stills
from ttm.policy import PRESETS, Policy, PolicySpec, UserError, load_checkpoint
from ttm.policy.sight import ContentMemory
from ttm.training.data import FeatureCache
from ttm.training.frozen_vision import EpisodeFeatures, tick_codes
from ttm.training.losses import (
    LONGEST_FRAME,
    RecallLoss,
    RecallTargets,
    half_of_slots,
    learn_memory,
    recalling_size,
)
from ttm.training.train import TrainCommand

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
    seen = features_of(episodes, spec).seen(by_sight=False)
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
        tick_codes(features_of(episodes, spec).seen(by_sight=False), [TICKS] * 2, seed=0)


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


def test_a_content_memory_learns_to_recall_alone(cue: Path, spec: PolicySpec) -> None:
    episodes, config = open_dataset(cue), replace(PRESETS["tiny"], sight_tokens=6, sight="content")
    torch.manual_seed(0)
    policy = Policy(spec, config)
    features = FeatureCache(policy, spec.cameras).features(episodes)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    codes = tick_codes(features.seen(by_sight=True), [TICKS] * 12, seed=0)
    targets = RecallTargets(codes, [TICKS] * 12, stand_stills(episodes))
    recall = RecallLoss(recalling_size(policy), targets.size, 1.0)
    instructions = torch.from_numpy(embed_instructions(list(episodes)))
    lessons = learn_memory(
        policy, recall, targets, features.by_sight, instructions, steps=60, seed=0
    )
    ratios = list(lessons)
    assert ratios[0] > 0.8
    assert ratios[-1] < 0.5
    changed = {n for n, v in policy.state_dict().items() if not torch.equal(v, before[n])}
    assert {name.split(".")[0] for name in changed} == {"sight"}


def test_half_of_the_slots_have_to_recall() -> None:
    """What is left out is both what a slot sees and what it holds, in the whole window."""
    now, seen = torch.rand(50, 3, 4, 5) + 1, torch.rand(50, 3, 4, 5) + 1
    half = half_of_slots(now, seen).view(50, 3, 2, 4, 5)
    kept = half[:, 0, 0, :, 0] > 0
    assert 60 < int(kept.sum()) < 140
    both = torch.stack([now, seen], dim=2)
    assert torch.equal(half, both * kept[:, None, None, :, None])


def test_frames_last_in_training_alone(
    cue: Path, command: Callable[..., TrainCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    repeats: dict[bool, list[torch.Tensor | None]] = {True: [], False: []}
    forward = ContentMemory.forward

    def recorded(self: ContentMemory, *given: Any) -> Any:
        repeats[self.training].append(given[5])
        return forward(self, *given)

    monkeypatch.setattr(ContentMemory, "forward", recorded)
    small = {"sight": "content", "sight_tokens": 2, "window": "episode", "batch_size": 6}
    assert command(data=(str(cue),), steps=2, **small).run() == 0
    lasted = torch.cat([x.flatten() for x in repeats[True] if x is not None])
    assert float(lasted.min()) == 1 < float(lasted.max()) <= LONGEST_FRAME
    assert len(repeats[False]) > 0
    assert all(each is None for each in repeats[False])


@pytest.mark.parametrize(("core", "remembers"), [("lstm", True), ("none", False)])
def test_the_ratio_falls_where_there_is_a_memory(
    command: Callable[..., TrainCommand],
    cue: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    core: str,
    remembers: bool,
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
    print(ratios)
    # What all scenes have in common needs no memory.
    assert (ratios[-1] < 0.15) == remembers
    policy, _ = load_checkpoint(training.out / "last.safetensors")
    assert not any("recall" in name for name in policy.state_dict())
