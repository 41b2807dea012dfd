"""Robots with other grippers and without cameras: what the runner takes from them and gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy.checkpoint import save_checkpoint
from ttm.policy.config import EngineName
from ttm.policy.inputs import Normalizer
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.runner import PolicyRunner
from ttm.policy.spec import Observation, PolicySpec

Observe = Callable[[int], Observation]


def stirred(policy: Policy) -> Policy:
    """Add noise to every parameter, so that every path through the network matters."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


@pytest.mark.parametrize("command", [-1.0, 1.0])
def test_binary_parts_come_out_as_the_robots_own_commands(
    spec: PolicySpec,
    config: PolicyConfig,
    observe: Observe,
    embedding: np.ndarray,
    tmp_path: Path,
    command: float,
) -> None:
    """The checkpoint carries the two commands; equal weights choose the same one of either pair."""
    gripper = replace(spec.actions[1], low=-1, high=1)
    policy = stirred(Policy(replace(spec, actions=(spec.actions[0], gripper)), config))
    with torch.no_grad():
        policy.action_head.mlp.out.bias[3] = 5 * command
    save_checkpoint(tmp_path / "a.safetensors", policy, {})
    ours = PolicyRunner.from_checkpoint(tmp_path / "a.safetensors", engine="torch")
    plain = Policy(spec, config)
    plain.load_state_dict(policy.state_dict())
    plain.normalizer = Normalizer(spec)
    theirs = PolicyRunner(plain, engine="torch")
    for runner in (ours, theirs):
        runner.reset("open the drawer", embedding=embedding)
    for tick in range(4):
        action, other = ours.step(observe(tick)), theirs.step(observe(tick))
        assert action.part("gripper") == command
        assert other.part("gripper") == (command + 1) / 2
        np.testing.assert_allclose(action.probabilities, other.probabilities, atol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_policy_without_cameras_runs(
    spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray, engine: EngineName
) -> None:
    policy = stirred(Policy(replace(spec, cameras=()), config))
    runner = PolicyRunner(policy, engine=engine)
    runner.reset("open the drawer", embedding=embedding)
    first, second = (
        runner.step({"joints.left": np.array([0.1 * tick, 0.2], np.float32)}) for tick in range(2)
    )
    assert runner.tick == 2
    assert not np.array_equal(first.probabilities, second.probabilities)
