from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.cloning.batches import BatchSource, TrainingBatch
from ttm.training.cloning.settings.groups import AugmentationConfig
from ttm.training.common.recorded.episodes import open_all, split


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
    assert batch.num_images == 2 * 4 * 3
    assert batch.weights.shape == batch.actions.shape == (4, 3, 1, 3)


def test_changes_of_the_gripper_weigh_more(source: BatchSource) -> None:
    weights = torch.cat([batch.weights.flatten(0, 2) for batch in take(source, 0, 10)])
    assert set(weights[..., 2].flatten().tolist()) == {1.0, 5.0}
    assert set(weights[..., :2].flatten().tolist()) == {1.0}
