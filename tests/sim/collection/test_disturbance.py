"""Disturbing the executed action."""

import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec
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


def test_parts_of_another_robot_are_disturbed_by_their_limits():
    """Only where there are limits, and only what is continuous."""
    spec = PolicySpec(
        robot="another",
        cameras=(),
        proprioception=(),
        actions=(
            ActionPart("wheels", 2, "m/s", low=-2.0, high=2.0),
            ActionPart("unlimited", 1, "m"),
            ActionPart("terminate", 1, "", kind="binary", low=0.0, high=1.0),
        ),
        rate_hz=5.0,
    )
    action = np.zeros(spec.action_size, dtype=np.float32)
    disturbed = []
    for seed in range(20):
        disturb = Disturbance(np.random.default_rng(seed), 1.0, spec)
        disturbed += [disturb(action) for _ in range(20)]
    spread = np.std(disturbed, axis=0)
    assert spread[:2] == pytest.approx([0.4, 0.4], rel=0.5)
    assert (spread[2:] == 0).all()
