"""Normalisation by statistics in buffers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from ttm.policy import PolicySpec, UserError
from ttm.policy.inputs import INPUT_LIMIT, Normalizer


@dataclass
class Vector:
    mean: np.ndarray
    std: np.ndarray


@dataclass
class Statistics:
    actions: Vector = field(
        default_factory=lambda: Vector(
            np.array([0.01, 0.02, 0.03, 0.9]), np.array([0.05, 0.0, 0.02, 0.3])
        )
    )
    proprioception: dict[str, Vector] = field(
        default_factory=lambda: {"joints.left": Vector(np.array([1.0, 2.0]), np.array([0.5, 0.0]))}
    )


@pytest.fixture
def normalizer(spec: PolicySpec) -> Normalizer:
    made = Normalizer(spec)
    made.set_statistics(Statistics())
    return made


def test_actions_come_back(normalizer: Normalizer) -> None:
    actions = torch.tensor([[0.03, 0.021, -0.1, 1.0]])
    normalized = normalizer.normalize_actions(actions)
    torch.testing.assert_close(normalizer.denormalize_actions(normalized), actions)
    assert normalized[0, 0].item() == pytest.approx(0.4)


def test_binary_dimensions_stay_as_they_are(normalizer: Normalizer) -> None:
    actions = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(normalizer.normalize_actions(actions)[:, 3], actions[:, 3])


@pytest.mark.parametrize("with_statistics", [False, True])
def test_the_two_commands_of_a_binary_part_become_0_and_1(
    spec: PolicySpec, with_statistics: bool
) -> None:
    """A gripper of -1 and 1 is learned as one logit, whether or not statistics were set."""
    gripper = replace(spec.actions[1], low=-1, high=1)
    normalizer = Normalizer(replace(spec, actions=(spec.actions[0], gripper)))
    if with_statistics:
        normalizer.set_statistics(Statistics())
    actions = torch.tensor([[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 1.0]])
    normalized = normalizer.normalize_actions(actions)
    assert normalized[:, 3].tolist() == [0, 1]
    assert normalizer.denormalize_actions(normalized)[:, 3].tolist() == [-1, 1]


def test_a_dimension_that_never_moved_does_not_explode(normalizer: Normalizer) -> None:
    a_tenth_of_the_range = torch.tensor([[0.0, 0.04, 0.0, 0.0]])
    assert normalizer.normalize_actions(a_tenth_of_the_range)[0, 1].abs() < 30


def test_proprioception_is_clipped(normalizer: Normalizer) -> None:
    (vector,) = normalizer.normalize_proprioception({"joints.left": torch.tensor([1.5, 1e9])})
    assert vector.tolist() == [1.0, INPUT_LIMIT]


def test_statistics_without_a_vector_are_refused(spec: PolicySpec) -> None:
    with pytest.raises(UserError, match=r"joints\.left"):
        Normalizer(spec).set_statistics(Statistics(proprioception={}))
