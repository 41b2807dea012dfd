"""A robot with two cameras and a network of some thousand parameters for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ttm.policy import (
    ActionPart,
    CameraSpec,
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicySpec,
    ProprioceptionSpec,
)
from ttm.policy.config import ActionHeadConfig, VisionConfig
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.spec import Observation


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def spec() -> PolicySpec:
    return PolicySpec(
        robot="test arm",
        cameras=(CameraSpec("head", 32, 32), CameraSpec("wrist", 32, 32)),
        proprioception=(ProprioceptionSpec("joints.left", ("elbow (rad)", "wrist (rad)")),),
        actions=(
            ActionPart("arm", 3, "m", low=-0.1, high=0.1),
            ActionPart("gripper", 1, "", kind="binary", low=0, high=1),
        ),
        rate_hz=5.0,
    )


@pytest.fixture
def config() -> PolicyConfig:
    return PolicyConfig(
        width=16,
        tokens_per_camera=2,
        language_size=8,
        image_size=32,
        vision=VisionConfig(
            width_coefficient=0.25, depth_coefficient=0.5, reduction=8, norm="group"
        ),
        core=TokenTuringConfig(
            memory_size=4, process_size=3, num_layers=1, num_heads=2, mlp_size=32, bottleneck=8
        ),
        head=ActionHeadConfig(hidden_size=16),
    )


@pytest.fixture
def policy(spec: PolicySpec, config: PolicyConfig) -> Policy:
    return stirred(Policy(spec, config))


@pytest.fixture
def embedding() -> np.ndarray:
    values = np.random.default_rng(5).normal(size=384)
    return (values / np.linalg.norm(values)).astype(np.float32)


@pytest.fixture
def observe(spec: PolicySpec) -> Callable[[int], Observation]:
    """Return a maker of observations, which are determined by a number."""

    def observation(number: int) -> Observation:
        rng = np.random.default_rng(number)
        frames = {
            c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8)
            for c in spec.cameras
        }
        vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
        return {**frames, **vectors}

    return observation


@pytest.fixture
def make_inputs(spec: PolicySpec) -> Callable[[int, int], PolicyInputs]:
    """Return a maker of random inputs of B windows of T ticks."""

    def make(batch: int, ticks: int) -> PolicyInputs:
        return PolicyInputs(
            images={
                c.name: torch.randint(
                    0, 256, (batch, ticks, 3, c.height, c.width), dtype=torch.uint8
                )
                for c in spec.cameras
            },
            proprioception={v.name: torch.randn(batch, ticks, v.size) for v in spec.proprioception},
            previous_action=torch.randn(batch, ticks, spec.action_size),
            previous_action_valid=torch.rand(batch, ticks) > 0.3,
            language=torch.nn.functional.normalize(torch.randn(batch, 384), dim=1),
        )

    return make


def stirred(policy: Policy) -> Policy:
    """Add noise to every parameter, so that none is zero and every path through the network matters."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy
