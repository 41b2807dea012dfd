from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttm.datasets.windows.windows import WindowDataset
from ttm.policy.errors import UserError
from ttm.training.cloning.augmentation import AugmentationConfig
from ttm.training.cloning.behavior_cloning import Batch, BehaviorCloningConfig
from ttm.training.cloning.training_data import BatchSource, open_all, split


@pytest.fixture
def source(episodes: Path) -> BatchSource:
    windows = WindowDataset(split(open_all([str(episodes)]), "train"), 3)
    return BatchSource(windows, 4, BehaviorCloningConfig(), AugmentationConfig(), seed=1)


def take(source: BatchSource, first_step: int, count: int) -> list[Batch]:
    return [batch for batch, _ in zip(source.batches(first_step), range(count), strict=False)]


def same(one: Batch, two: Batch) -> bool:
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
    assert batch.weights.shape == batch.actions.shape == (4, 3, 3)


def test_changes_of_the_gripper_weigh_more(source: BatchSource) -> None:
    weights = torch.cat([batch.weights.flatten(0, 1) for batch in take(source, 0, 10)])
    assert set(weights[:, 2].tolist()) == {1.0, 5.0}
    assert set(weights[:, :2].flatten().tolist()) == {1.0}


def test_several_data_sets_are_one(episodes: Path) -> None:
    files = sorted(str(path) for path in episodes.iterdir())
    joined = open_all([files[0], files[1]])
    assert len(split(joined, "train")) + len(split(joined, "valid")) == 2


def test_data_sets_of_different_robots_are_refused(episodes: Path, other_robot: Path) -> None:
    with pytest.raises(UserError, match=r"robot small, but .* has other"):
        open_all([str(episodes), str(other_robot)])


def test_a_wrong_camera_is_refused_with_those_there_are(episodes: Path) -> None:
    with pytest.raises(UserError, match="camera 'back' is not in this data; it has: head, wrist"):
        open_all([str(episodes)], ["back"])
