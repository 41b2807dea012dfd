"""The scripted demonstrator recovers from a push and from losing what it held."""

import numpy as np
import pytest

from ttm.sim import TASK_NAMES
from ttm.sim.kitchen.spec import SPEC


def run(env, disturb=lambda tick, action: action):
    """Return whether the expert solves the episode. `disturb` counts the ticks in which it may act."""
    expert, tick = env.expert(), 0
    while True:
        action = expert.action()
        assert env.action_space.contains(action)
        going = env.task.go(env.world)
        *_, terminated, truncated, _ = env.step(disturb(tick, action) if going else action)
        tick += going
        if terminated or truncated:
            return terminated


# What is dropped in `take_back` falls to the floor, where no expert reaches it.
@pytest.mark.parametrize("task", [name for name in TASK_NAMES if name != "take_back"])
def test_expert_recovers_from_a_push_and_a_lost_grip(blind, task):
    rng = np.random.default_rng(0)

    def disturb(tick, action):
        action = action.copy()
        if tick in (6, 7, 8):
            action[SPEC.action_slices["arm_translation"]] = rng.uniform(-0.05, 0.05, 3)
            action[SPEC.action_slices["base"]] = (-0.2, 0.5)
        if tick in (15, 16):
            action[SPEC.action_slices["gripper"]] = 1.0
        return action

    blind.reset(seed=7, options={"task": task})
    assert run(blind, disturb)


def test_expert_says_terminate_only_after_success(blind):
    blind.reset(seed=0, options={"task": "pick"})
    expert = blind.expert()
    where = SPEC.action_slices["terminate"]
    assert expert.action()[where] == 0
    assert run(blind)
    assert expert.action()[where] == 1
