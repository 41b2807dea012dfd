from __future__ import annotations

import torch

from ttm.policy import PolicySpec
from ttm.training.losses import part_weights


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
