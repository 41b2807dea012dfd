"""Goals by services over DDS: how each way to end one leaves the robot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool, String

CAN = "pick up the red can"
PATIENT = {"use_sim_time": True, "stop_after_s": 600.0}  # a busy machine is no fault here
EVERY = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
Robot = Any


@pytest.fixture
def reports(robot: Robot) -> Iterator[list[dict[str, Any]]]:
    """Everything on `~/goal`."""
    robot.repair()
    heard: list[dict[str, Any]] = []
    subscription = robot.create_subscription(
        String, "policy_node/goal", lambda message: heard.append(json.loads(message.data)), EVERY
    )
    yield heard
    robot.destroy_subscription(subscription)


def _press(robot: Robot) -> None:
    publisher = robot.create_publisher(Bool, "e_stop", 10)
    robot.wait(lambda: publisher.get_subscription_count(), "the e-stop")
    publisher.publish(Bool(data=True))
    robot.wait(lambda: "it is pressed" in robot.message, "the stop")
    publisher.publish(Bool(data=False))
    robot.wait(lambda: robot.message.startswith("standing still"), "the release")
    robot.destroy_publisher(publisher)


def _stop_after(robot: Robot, seconds: float) -> None:
    message = Parameter("stop_after_s", value=seconds).to_parameter_msg()
    request = SetParameters.Request(parameters=[message])
    (result,) = robot.call("set_parameters", SetParameters, parameters=request.parameters).results
    assert result.successful


def _fall_silent(robot: Robot) -> None:
    _stop_after(robot, 1.0)
    robot.silent.update(robot.names)
    robot.wait(lambda: robot.message.startswith("standing still"), "the end of the goal")
    _stop_after(robot, PATIENT["stop_after_s"])


def _deactivate(robot: Robot) -> None:
    assert robot.transition(Transition.TRANSITION_DEACTIVATE)
    refusal = robot.call("start")
    assert (refusal.success, refusal.message) == (False, "the node is inactive; activate it first")
    assert robot.transition(Transition.TRANSITION_ACTIVATE)


ENDS: dict[str, tuple[Callable[[Robot], object], str, str]] = {
    "cancel": (lambda robot: robot.call("cancel"), "canceled", ""),
    "e-stop": (_press, "aborted", "emergency stop: "),
    "silence": (_fall_silent, "aborted", "is accepted"),
    "deactivation": (_deactivate, "aborted", "the node was deactivated"),
    "reset": (lambda robot: robot.call("reset_memory"), "aborted", "the memory was reset"),
}
"""What ends a goal, its last state, and what its reason says."""


def test_the_robot_moves_for_goals_alone_and_stands_after_each(
    robot: Robot, start_policy: Any, reports: list[dict[str, Any]]
) -> None:
    process = start_policy(
        instruction=CAN, start_on_instruction=False, e_stop_rearm=False, **PATIENT
    )
    for number, (end, state, reason) in enumerate(ENDS.values(), start=1):
        robot.wait(lambda: robot.message.startswith("standing still"), "the rest")
        moved_s = robot.moved_at_s
        assert robot.call("start").success
        robot.wait_for_motion()
        assert robot.moved_at_s > moved_s
        robot.wait(lambda n=number: reports[-1]["goal"] == n and reports[-1]["tick"] > 1, "ticks")
        assert "is being executed" in robot.call("start").message
        end(robot)
        robot.wait(lambda: reports[-1]["state"] != "executing", "the end")
        assert reports[-1]["state"] == state
        assert reason in reports[-1]["reason"]
        robot.repair()
        robot.wait(lambda: robot.stands, "zero on all motion topics")
    assert [r["tick"] for r in reports if r["goal"] == 1 and not r["reason"]][:3] == [0, 1, 2]
    assert process.end() == 0


def test_a_policy_that_says_it_is_done_ends_its_goal_and_then_the_robot_stands(
    robot: Robot, start_policy: Any, reports: list[dict[str, Any]]
) -> None:
    process = start_policy("terminate", instruction=CAN, **PATIENT)
    robot.wait_for_motion()
    robot.call("start")
    robot.wait(lambda: reports and reports[-1]["state"] == "succeeded", "the end")
    assert reports[-1]["tick"] == 1
    robot.wait(lambda: robot.stands and robot.message == "standing still: goal 1 succeeded", "rest")
    moved_s = robot.moved_at_s
    assert not robot.call("cancel").success
    assert robot.moved_at_s == moved_s
    assert process.end() == 0
