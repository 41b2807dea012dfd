"""Batches of windows, their losses, and the inputs that they hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttm.datasets import WindowDataset
from ttm.policy import PolicyInputs, PolicySpec
from ttm.training.batches import BatchSource, Pick, drop_inputs
from ttm.training.data import open_all, split
from ttm.training.distributed import Processes
from ttm.training.losses import TrainingBatch, part_weights
from ttm.training.options import AugmentationConfig, InputDropoutConfig


@pytest.fixture
def source(episodes: Path) -> BatchSource:
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 3)
    return BatchSource(windows, 4, 1, augmentation=AugmentationConfig())


def take(source: BatchSource, first_step: int, count: int) -> list[TrainingBatch]:
    return [batch for batch, _ in zip(source.batches(first_step), range(count), strict=False)]


def same(one: TrainingBatch, two: TrainingBatch) -> bool:
    pairs = [
        (one.actions, two.actions),
        (one.inputs.images["head"], two.inputs.images["head"]),
        (one.inputs.previous_action_valid, two.inputs.previous_action_valid),
    ]
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_batch_depends_on_its_step_alone(source: BatchSource) -> None:
    unbroken = take(source, 0, 12)
    resumed = take(source, 7, 5)
    assert all(same(one, two) for one, two in zip(unbroken[7:], resumed, strict=True))
    assert not same(unbroken[0], unbroken[1])


def test_a_batch_has_windows_of_all_cameras(source: BatchSource) -> None:
    batch = take(source, 0, 1)[0]
    assert batch.inputs.images.keys() == {"head", "wrist"}
    assert batch.inputs.images["head"].shape == (4, 3, 3, 16, 16)
    assert batch.weights.shape == batch.actions.shape == (4, 3, 1, 3)


def test_changes_of_the_gripper_weigh_more(source: BatchSource) -> None:
    weights = torch.cat([batch.weights.flatten(0, 2) for batch in take(source, 0, 10)])
    assert set(weights[..., 2].flatten().tolist()) == {1.0, 5.0}
    assert set(weights[..., :2].flatten().tolist()) == {1.0}


def like(source: BatchSource, **changes: Any) -> BatchSource:
    return BatchSource(source.windows, 4, 1, augmentation=AugmentationConfig(), **changes)


def test_processes_share_the_batch_that_one_would_have(source: BatchSource) -> None:
    pick = Pick(source.windows.places([3, 0, 5, 4, 1]))
    whole = source.make(pick, 7, 0)
    shares = [like(source, processes=Processes(rank, 2)).make(pick, 7, 0) for rank in range(2)]
    assert [len(share.valid) for share in shares] == [2, 3]
    assert same(shares[0], whole.of_windows(slice(0, 2)))
    assert same(shares[1], whole.of_windows(slice(2, 5)))


def test_a_gpu_gets_recorded_frames_and_augments_them_alike(
    source: BatchSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingBatch, "pin_memory", lambda self: self)  # which needs a GPU
    pick = Pick(source.windows.places([3, 0, 5, 4]))
    sent = like(source, device=torch.device("cuda")).make(pick, 7, 0)
    recorded = BatchSource(source.windows, 4, 1).make(pick, 7, 0)
    assert torch.equal(sent.inputs.images["head"], recorded.inputs.images["head"])
    assert same(sent.to(torch.device("cpu")), source.make(pick, 7, 0))


def test_weights_of_dimensions_reach_binary_parts_alone(spec: PolicySpec) -> None:
    weights = torch.ones(1, 2, 3)
    weights[0, 1, 2] = 5
    found = part_weights(spec, weights, torch.ones(1, 2))
    assert found["arm"].tolist() == [[1, 1]]
    assert found["gripper"].tolist() == [[1, 5]]


def test_weights_of_ticks_reach_all_parts(spec: PolicySpec) -> None:
    weights = torch.ones(1, 2, 3)
    weights[0, :, 2] = 5
    found = part_weights(spec, weights, torch.tensor([[0.5, 2.0]]))
    assert found["arm"].tolist() == [[0.5, 2]]
    assert found["gripper"].tolist() == [[2.5, 10]]


def inputs(batch: int, ticks: int = 3) -> PolicyInputs:
    valid = torch.ones(batch, ticks, dtype=torch.bool)
    valid[:, 0] = False
    return PolicyInputs({}, {}, torch.zeros(batch, ticks, 3), valid, torch.zeros(batch, 4))


def test_previous_actions_are_hidden_for_whole_windows_at_the_rate_asked_for() -> None:
    config = InputDropoutConfig(previous_action_dropout=0.3, proprioception_dropout=0.8)
    dropped = drop_inputs(inputs(2000), config, np.random.default_rng(0))
    seen = dropped.previous_action_valid
    assert not seen[:, 0].any()  # an episode's first tick has none
    assert torch.equal(seen[:, 1], seen[:, 2])
    assert abs(seen[:, 1].float().mean() - 0.7) < 0.05
    felt = dropped.proprioception_valid
    assert felt is not None
    assert torch.equal(felt[:, :1].expand_as(felt), felt)
    assert abs(felt[:, 0].float().mean() - 0.2) < 0.05


def test_no_dropout_hides_nothing() -> None:
    given = inputs(50)
    kept = drop_inputs(given, InputDropoutConfig(0.0, 0.0), np.random.default_rng(0))
    assert torch.equal(kept.previous_action_valid, given.previous_action_valid)
    assert kept.proprioception_valid is not None
    assert kept.proprioception_valid.all()
