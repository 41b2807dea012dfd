from __future__ import annotations

import torch

from ttm.policy.spec import PolicySpec
from ttm.training.cloning.losses import part_weights


def test_weights_reach_binary_parts_alone(spec: PolicySpec) -> None:
    weights = torch.ones(1, 2, 3)
    weights[0, 1, 2] = 5
    found = part_weights(spec, weights)
    assert found.keys() == {"gripper"}
    assert found["gripper"].tolist() == [[1, 5]]
