from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.datasets import EpisodeWriter, dataset_statistics, open_dataset
from ttm.datasets.windows import policy_inputs
from ttm.policy import PRESETS, ActionPart, Policy, PolicySpec
from ttm.training import validation
from ttm.training.validation import EpisodeErrors, ErrorSum

ACTIONS = {
    "train": [[(0.0, 0.0, 0), (0.4, 0.2, 1)]],
    "valid": [[(0.2, 0.1, 0), (0.2, 0.3, 0), (0.4, 0.3, 1)], [(0.0, 0.1, 1)]],
}
"""Actions whose training part has mean and standard deviation (0.2, 0.1, 0.5)."""


@pytest.fixture
def errors(tmp_path: Path, spec: PolicySpec) -> EpisodeErrors:
    for split, episodes in ACTIONS.items():
        for number, actions in enumerate(episodes):
            write(tmp_path / f"{split}_{number}.hdf5", spec, split, actions)
    dataset = open_dataset(tmp_path)
    statistics = dataset_statistics(dataset.filter("train")).actions
    return EpisodeErrors(dataset.filter("valid"), statistics, {})


def write(
    path: Path, spec: PolicySpec, split: str, actions: list[tuple[float, float, int]]
) -> None:
    rng = np.random.default_rng(len(actions))
    with EpisodeWriter(path, spec) as writer:
        for tick, action in enumerate(actions):
            seen = {
                name: rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                for name in ("head", "wrist")
            }
            writer.append(
                {**seen, "joints": np.zeros(2, np.float32)}, action, timestamp_s=float(tick)
            )
        writer.finish(instruction="do", embedding=np.ones(384), split=split)  # type: ignore[arg-type]


def test_the_mean_action_of_the_training_episodes(errors: EpisodeErrors) -> None:
    found = errors.mean_action()
    # in deviations: (0 0 -1), (0 2 -1), (1 2 1), (-1 0 1); that is 4 ticks of 3 dimensions
    assert found.normalized == pytest.approx(np.sqrt((1 + 5 + 6 + 2) / 12))
    assert found.parts["arm"] == pytest.approx((0 + 0 + 0 + 0.2 + 0.2 + 0.2 + 0.2 + 0) / 8)
    assert found.parts["gripper"] == 0.5  # a mean of 0.5 means 0
    assert found.ticks == 4


def test_the_previous_action_once_more(errors: EpisodeErrors) -> None:
    found = errors.previous_action()
    # the first ticks repeat the mean action: (0 0 -1) and (-1 0 1); the others (0 2 0), (1 0 2)
    assert found.normalized == pytest.approx(np.sqrt((1 + 2 + 4 + 5) / 12))
    assert found.parts["gripper"] == 0.5
    assert found.ticks == 4


@pytest.fixture
def policy(spec: PolicySpec) -> Policy:
    torch.manual_seed(0)
    policy = Policy(spec, PRESETS["tiny"]).eval()
    torch.nn.init.normal_(policy.action_head.mlp.out.weight)
    return policy


def test_a_policy_runs_through_whole_episodes_however_they_are_cut(
    errors: EpisodeErrors, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = errors.policy(policy)
    monkeypatch.setattr(validation, "TICKS_AT_ONCE", 2)
    monkeypatch.setattr(validation, "EPISODES_AT_ONCE", 1)
    assert errors.policy(policy).normalized == pytest.approx(whole.normalized, rel=1e-4)
    assert whole.ticks == 4


def test_the_memory_is_carried_through_the_episode(errors: EpisodeErrors, policy: Policy) -> None:
    batch = errors.windows.gather([0])
    with torch.no_grad():
        raw = policy(policy_inputs(batch))[0]
    expected = policy.decode(raw)[0].numpy()
    scale = errors.statistics.std
    one = EpisodeErrors(errors.windows.episodes[:1], errors.statistics, {})
    error = np.sqrt(np.square((expected - batch["actions"][0].numpy()) / scale).mean())
    assert one.policy(policy).normalized == pytest.approx(error, rel=1e-4)


def test_hiding_the_previous_action_changes_what_is_predicted(
    errors: EpisodeErrors, policy: Policy
) -> None:
    assert (
        errors.policy(policy).normalized
        != errors.policy(policy, without_previous_action=True).normalized
    )


def test_few_episodes_are_taken_evenly(errors: EpisodeErrors) -> None:
    few = EpisodeErrors(errors.windows.episodes, errors.statistics, {}, most_episodes=1)
    assert len(few.windows) == 1


def test_errors_by_hand(spec: PolicySpec) -> None:
    total = ErrorSum(spec, np.array([0.5, 2.0, 0.25]))
    total.add(np.array([[1.0, 0.0, 0.75]]), np.array([[0.0, 0.0, 1.0]]))
    total.add(np.array([[0.0, 4.0, 0.25]]), np.array([[0.0, 0.0, 1.0]]))
    found = total.result()
    # squared errors in deviations: arm 4, 0; 0, 4; gripper 1; 9
    assert found.normalized == pytest.approx(np.sqrt((4 + 0 + 1 + 0 + 4 + 9) / 6))
    assert found.parts["arm"] == pytest.approx((1 + 0 + 0 + 4) / 4)
    assert found.parts["gripper"] == 0.5  # the second tick is on the wrong side
    assert found.ticks == 2


def test_a_dimension_that_never_moved_does_not_count(spec: PolicySpec) -> None:
    total = ErrorSum(spec, np.array([1.0, 0.0, 1.0]))
    total.add(np.array([[0.0, 1e-3, 0.0]]), np.zeros((1, 3)))
    assert total.result().normalized == 0


def test_a_binary_part_is_wrong_on_the_other_side_of_the_middle_of_its_commands() -> None:
    """Such as a gripper whose commands are widths in metres."""
    gripper = ActionPart("gripper", 1, "m", "binary", 0.0, 0.04)
    total = ErrorSum(PolicySpec("wide", (), (), (gripper,), 5.0), np.array([1.0]))
    total.add(np.array([[0.03], [0.01], [0.03], [0.03]]), np.array([[0.04], [0.0], [0.0], [0.04]]))
    assert total.result().parts == {"gripper": 0.25}
