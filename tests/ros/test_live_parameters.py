"""Limits and ages of a running policy_node, set over DDS as `ros2 param set` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rcl_interfaces.srv import DescribeParameters

from ttm.sim.kitchen.spec import SPEC

CAN = "pick up the red can"
SLOW = 2e-4
"""A limit in m/s below what the untrained policy asks for, which moves slowly."""


def _forward(robot: Any) -> float:
    return abs(float(robot.commands["cmd_vel"][-1].twist.linear.x))


def _wanted(robot: Any) -> float:
    """The speed that the policy itself asked for."""
    return abs(float(robot.actions[-1][SPEC.action_slices["base"]][0]))


def test_limits_hold_on_cmd_vel_from_the_next_tick_or_are_refused_with_the_reason(
    robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    # Whole numbers are doubles, too, when they are given at the start.
    start_node(
        "policy_node", checkpoint=str(checkpoint), engine="torch", lockstep=True, max_forward_m_s=5
    )
    robot.begin_episode(CAN)
    robot.step(observations[0])
    assert _forward(robot) == _wanted(robot) > 2 * SLOW
    assert robot.set_parameters(max_forward_m_s=SLOW) == [(True, "")]
    for observation in observations[1:4]:
        robot.step(observation)
        assert _forward(robot) == pytest.approx(min(SLOW, _wanted(robot)))
        assert _forward(robot) <= SLOW

    refused = {
        "max_forward_m_s": float("nan"),
        "max_yaw_rad_s": -1.0,
        "max_age_s": 0,
        "threads": 2,
        "lockstep": False,
        "checkpoint": "other.safetensors",
    }
    results = robot.set_parameters(**refused)
    for (name, _), (successful, reason) in zip(refused.items(), results, strict=True):
        assert not successful
        assert name in reason
    robot.step(observations[0])
    assert _forward(robot) <= SLOW
    assert robot.set_parameters(max_forward_m_s=5) == [(True, "")]  # an integer for a double
    robot.step(observations[0])
    assert _forward(robot) == _wanted(robot) > SLOW


def test_the_accepted_age_can_be_changed_while_the_robot_is_held(
    free_robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    robot = free_robot
    start_node(
        "policy_node",
        checkpoint=str(checkpoint),
        engine="torch",
        instruction=CAN,
        use_sim_time=True,
        max_age_s=0.5,
        stop_after_s=10_000.0,
    )
    robot.wait(lambda: bool(robot.memories), "the policy")

    def until(done: Callable[[], bool], age_s: float, what: str) -> None:
        def let_pass() -> bool:
            robot.run_freely(observations[0], age_ns=round(age_s * 1e9))
            return done()

        robot.wait(let_pass, what)

    until(lambda: len(robot.actions) >= 2, 0.0, "ticks")
    until(lambda: "holding" in robot.diagnosis, 1.0, "the hold")
    assert robot.set_parameters(max_age_s=3) == [(True, "")]
    acted = len(robot.actions)
    until(lambda: len(robot.actions) > acted, 1.0, "ticks")
    until(lambda: "running" in robot.diagnosis, 1.0, "the diagnosis of that")
    assert robot.set_parameters(max_age_s=0.5) == [(True, "")]
    until(lambda: "holding" in robot.diagnosis, 1.0, "the hold")


def test_acceleration_is_limited_from_tick_to_tick_of_cmd_vel(
    robot: Any, start_node: Any, checkpoint: Any, observations: list[Any]
) -> None:
    start_node(
        "policy_node",
        checkpoint=str(checkpoint),
        engine="torch",
        lockstep=True,
        max_forward_accel_m_s2=SLOW,
    )
    robot.begin_episode(CAN)
    speeds = [0.0]
    for observation in observations[:6]:
        robot.step(observation)
        speeds.append(float(robot.commands["cmd_vel"][-1].twist.linear.x))
    change = np.abs(np.diff(speeds)) / 0.2
    assert change.max() == pytest.approx(SLOW, rel=1e-3)


def test_describe_tells_range_and_whether_a_parameter_is_read_only(
    robot: Any, start_node: Any, checkpoint: Any
) -> None:
    start_node("policy_node", checkpoint=str(checkpoint), engine="torch", lockstep=True)
    names = ["max_forward_m_s", "checkpoint"]
    request = DescribeParameters.Request(names=names)
    limit, path = robot._call(DescribeParameters, "describe_parameters", request).descriptors
    assert not limit.read_only
    assert limit.floating_point_range[0].from_value == 0.0
    assert "m/s" in limit.additional_constraints
    assert path.read_only
