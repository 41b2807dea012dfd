"""A policy of one preset with random weights, and a made-up robot and episode to run it on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ttm.policy.network.config import PresetName
from ttm.policy.network.policy import Policy
from ttm.policy.network.presets import PRESETS
from ttm.policy.run.runner import PolicyRunner
from ttm.policy.spec import ActionPart, CameraSpec, Observation, PolicySpec, ProprioceptionSpec

CAMERAS = {"tiny": 2, "base": 1, "paper": 1}
"""Preset -> number of cameras of the robot that it is timed for."""


def preset_policy(preset: PresetName) -> Policy:
    """Return a policy with random weights, which are the same in every call.

    Its robot has an arm, a gripper and a base.
    """
    size = PRESETS[preset].image_size
    spec = PolicySpec(
        robot="bench",
        cameras=tuple(
            CameraSpec(f"camera {number}", size, size) for number in range(CAMERAS[preset])
        ),
        proprioception=(
            ProprioceptionSpec("joints", tuple(f"joint {number} (rad)" for number in range(7))),
            ProprioceptionSpec("gripper", ("opening",)),
        ),
        actions=(
            ActionPart("arm", 6, "m, rad", low=-1, high=1),
            ActionPart("gripper", 1, "", kind="binary", low=0, high=1),
            ActionPart("base", 2, "m/s, rad/s", low=-1, high=1),
        ),
        rate_hz=5.0,
    )
    torch.manual_seed(0)
    return Policy(spec, PRESETS[preset])


def tick_loop(runner: PolicyRunner) -> Callable[[], object]:
    """Return a tick of an episode without end that always sees the same observation."""
    observation = random_observation(runner.spec, 0)
    begin_episode(runner)
    return lambda: runner.step(observation)


def begin_episode(runner: PolicyRunner) -> None:
    """Reset the runner with a made-up embedding of the instruction, so that no language model is loaded."""
    size = runner.policy.config.embedding_size
    runner.reset("bench", embedding=np.full(size, size**-0.5, np.float32))


def random_observation(spec: PolicySpec, seed: int) -> Observation:
    """Return an observation of random values, the same for the same seed."""
    rng = np.random.default_rng(seed)
    frames = {
        c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in spec.cameras
    }
    vectors = {v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception}
    return {**frames, **vectors}
