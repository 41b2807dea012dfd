"""What keys, buttons and sticks do to the values of the action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import ActionSink, Field
from ttm_policy.teleop.controls import ControlMap, Controls, Drive
from ttm_policy.teleop.source import TeleopContext

GRIPPER = SPEC.action_slices["gripper"].start
BASE = SPEC.action_slices["base"].start


def pressed(**controls: float) -> Callable[[str], float]:
    return lambda name: controls.get(name, 0.0)


def test_velocities_follow_and_goals_stay(context: TeleopContext, still: np.ndarray) -> None:
    drives = (
        Drive("base", 0, "w", "s", speed=0.25),
        Drive("gripper", 0, "o", "c"),
        Drive("terminate", 0, "t"),
    )
    keys = Controls(ControlMap(drives), context)
    assert keys.wish(pressed(), 0.0) is None
    forward = keys.wish(pressed(w=1), 0.1)
    assert forward is not None
    expected = still.copy()
    expected[BASE] = 0.25
    assert np.array_equal(forward, expected, equal_nan=True)
    both = keys.wish(pressed(w=1, s=1, c=1, t=1), 0.2)
    assert both is not None
    assert (both[BASE], both[GRIPPER], both[-1]) == (0.0, 0.0, 1.0)
    keys.factor = 2.0
    assert keys.wish(pressed(s=1), 0.3)[BASE] == -0.5  # type: ignore[index]


def test_the_goal_of_a_joint_goes_on_from_where_it_is(context: TeleopContext) -> None:
    part = replace(SPEC.actions[2], kind="continuous", low=-1.0, high=1.0)
    spec = replace(SPEC, actions=(*SPEC.actions[:2], part, *SPEC.actions[3:]))
    context = replace(context, spec=spec)
    keys = Controls(ControlMap((Drive("gripper", 0, "o", "c", speed=0.5),)), context)
    assert np.isnan(keys.wish(pressed(o=1), 0.0)[GRIPPER])  # type: ignore[index]
    context.goals[GRIPPER] = 0.3
    assert keys.wish(pressed(c=1), 0.02)[GRIPPER] == pytest.approx(0.29)  # type: ignore[index]
    assert keys.wish(pressed(c=1), 10.0)[GRIPPER] == pytest.approx(0.25)  # type: ignore[index]


def test_a_stick_counts_beyond_its_dead_zone_while_the_dead_man_button_is_held(
    context: TeleopContext, still: np.ndarray
) -> None:
    stick = Drive("base", 1, "axis", speed=-0.8, dead_man="button")
    controls = Controls(ControlMap((stick,), dead_zone=0.2), context)
    assert controls.wish(pressed(axis=1.0), 0.0) is None
    resting = controls.wish(pressed(axis=0.2, button=1), 0.0)
    assert resting is not None
    assert np.array_equal(resting, still, equal_nan=True)
    for deflection, speed in ((0.6, -0.4), (-1.0, 0.8), (1.2, -0.8)):
        wish = controls.wish(pressed(axis=deflection, button=1), 0.0)
        assert wish is not None
        assert wish[BASE + 1] == pytest.approx(speed)


def test_two_goals_may_have_the_same_key(context: TeleopContext) -> None:
    fields = (Field("left", minimum=0, maximum=1), Field("right", minimum=0, maximum=1))
    hand = ActionSink("gripper", "hand", "trajectory_msgs/JointTrajectory", fields)
    part = replace(SPEC.actions[2], kind="continuous", size=2, low=0.0, high=1.0)
    contract = replace(context.contract, actions=(hand,))
    spec = replace(SPEC, actions=(part,))
    two = replace(context, contract=contract, spec=spec)
    two.goals = np.array([0.1, 0.2], np.float32)
    drives = tuple(Drive("gripper", value, "o", "c", speed=1.0) for value in (0, 1))
    wish = Controls(ControlMap(drives), two).wish(pressed(o=1), 0.0)
    assert wish is not None
    assert wish.tolist() == pytest.approx([0.2, 0.3])
