"""Disturbing the executed action."""

import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec
from ttm.sim.collect import Disturbance
from ttm.sim.kitchen.spec import SPEC


def test_disturbance_leaves_a_third_of_the_episodes_alone():
    action = np.zeros(SPEC.action_size, dtype=np.float32)

    def untouched(seed):
        disturb = Disturbance(np.random.default_rng(seed), 1.0, SPEC)
        return all(np.array_equal(disturb(action), action) for _ in range(5))

    assert 20 <= sum(untouched(seed) for seed in range(90)) <= 40


def test_no_disturbance_at_level_zero():
    action = np.ones(SPEC.action_size, dtype=np.float32)
    disturb = Disturbance(np.random.default_rng(5), 0.0, SPEC)
    assert all(np.array_equal(disturb(action), action) for _ in range(50))


def disturbed(*actions: ActionPart) -> np.ndarray:
    """Return many disturbed actions where zeros are commanded, (n, A)."""
    spec = PolicySpec("another", (), (ProprioceptionSpec("x", ("x",)),), actions, rate_hz=5.0)
    action = np.zeros(spec.action_size, dtype=np.float32)
    found = []
    for seed in range(60):
        disturb = Disturbance(np.random.default_rng(seed), 1.0, spec)
        found += [disturb(action) for _ in range(40)]
    return np.array(found)


def test_parts_in_other_units_are_disturbed_by_their_limits():
    """Only where there are limits, and only what is continuous."""
    actions = disturbed(
        ActionPart("arm_translation", 2, "turns", low=-2.0, high=2.0),
        ActionPart("unlimited", 1, "turns"),
        ActionPart("terminate", 1, "", kind="binary", low=0.0, high=1.0),
    )
    spread = actions.std(axis=0)
    assert spread[:2] == pytest.approx([0.33, 0.33], rel=0.3)
    assert (spread[2:] == 0).all()


def test_parts_are_disturbed_by_their_units_whatever_their_names():
    """As the kitchen's are, but for no more than a portion of the largest command."""
    kitchen = disturbed(*SPEC.actions).std(axis=0)
    metres, radians, speed = kitchen[:3].mean(), kitchen[3:6].mean(), kitchen[7:9].mean()
    spread = disturbed(
        ActionPart("tip", 1, "m/tick", low=-9, high=9),
        ActionPart("joints", 2, "rad"),
        ActionPart("drive", 2, "m/s, rad/s"),
        ActionPart("pose", 2, "m, rad"),
        ActionPart("careful", 1, "m/tick", low=-0.005, high=0.005),
    ).std(axis=0)
    wanted = [metres, radians, radians, speed, speed, metres, radians, metres / 10]
    assert spread == pytest.approx(wanted, rel=0.3)


def test_a_gripper_slips_to_its_own_two_commands():
    binary = ActionPart("fingers", 1, "", kind="binary", low=-1.0, high=1.0)
    assert set(disturbed(binary)[:, 0]) == {-1.0, 0.0, 1.0}
    continuous = ActionPart("gripper", 1, "m", low=0.0, high=0.08)
    assert {0.0, 0.08} <= set(disturbed(continuous)[:, 0])
