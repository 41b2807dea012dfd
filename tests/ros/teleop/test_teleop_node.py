"""A gamepad drives over DDS, until something stops the robot: `teleop_node` in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Joy
from std_srvs.srv import Trigger

from ttm_policy.messages import ns_to_stamp
from ttm_policy.qos import COMMAND

FORWARD = 0.25
"""The speed of the base at full deflection: half of its limit."""
STEP_NS = 50_000_000


class Person:
    """Holds a gamepad beside a robot that publishes its sensors."""

    def __init__(self, robot: Any, observation: dict[str, np.ndarray]) -> None:
        self.robot, self._observation = robot, observation
        self._joy = robot.create_publisher(Joy, "joy", 10)
        self.holds = self.sees = True

    def live(self, *, stick: float = 1.0, dead_man: bool = True, seconds: float = 0.05) -> None:
        """Let time pass, in which sensors and gamepad are published."""
        robot = self.robot
        robot.time_ns += STEP_NS
        if self.sees:
            robot.observe(self._observation)
        robot._clock.publish(Clock(clock=ns_to_stamp(robot.time_ns)))
        if self.holds:
            buttons = [0] * 5 + [int(dead_man)]
            self._joy.publish(Joy(axes=[0.0, stick] + [0.0] * 6, buttons=buttons))
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            robot._executor.spin_once(timeout_sec=0.01)

    def until(self, done: Callable[[], bool], what: str, **controls: Any) -> None:
        deadline_s = time.monotonic() + 180
        while not done():
            assert time.monotonic() < deadline_s, f"{what}: {self.speeds()[-3:]}, {self.diagnosis}"
            self.live(**controls)

    def speeds(self) -> list[float]:
        return [message.twist.linear.x for message in self.robot.commands["cmd_vel"]]

    @property
    def diagnosis(self) -> str:
        return str(self.robot.diagnosis)

    def drive(self) -> None:
        count = len(self.speeds())
        self.until(lambda: self.speeds()[count:][-1:] == [FORWARD], "the robot drives")

    def require_stop(self, words: str, **controls: Any) -> None:
        self.until(lambda: self.speeds()[-1] == 0.0, f"stopped by {words}", **controls)
        self.until(lambda: words in self.diagnosis, words, **controls)
        self.robot.drain()  # what was sent before the diagnosis may be handled after it
        assert self.speeds()[-1] == 0.0
        count = len(self.speeds())
        for _ in range(5):
            self.live(**controls)
        assert not any(self.speeds()[count:])


@pytest.fixture
def person(free_robot: Any, observations: list[dict[str, np.ndarray]]) -> Person:
    return Person(free_robot, observations[0])


def test_a_gamepad_drives_and_everything_stops_it(person: Person, start_node: Any) -> None:
    node = start_node("teleop_node", source="gamepad", use_sim_time=True)
    person.until(lambda: person.diagnosis == "nobody drives", "the node", dead_man=False)
    assert not person.speeds()  # a stick without its dead-man button

    person.drive()
    assert person.robot.commands["gripper_controller/joint_trajectory"]  # where it is measured
    person.require_stop("nobody drives", dead_man=False)

    person.drive()
    person.holds = False
    person.require_stop("gamepad has been silent for more than 0.3 s")
    person.holds = True

    person.drive()
    person.sees = False
    person.require_stop("joint_positions")
    person.sees = True

    person.drive()
    person.robot.press_e_stop(True)
    person.require_stop("emergency stop: it is pressed")
    person.robot.press_e_stop(False)
    person.require_stop("call the service rearm")
    _rearm(person)

    person.drive()
    _is_refused_beside_another_driver(person)

    person.drive()
    _stops_at_the_end(person, node)


def _rearm(person: Person) -> None:
    client = person.robot.create_client(Trigger, "teleop_node/rearm")
    person.until(client.service_is_ready, "rearm")
    future = client.call_async(Trigger.Request())
    person.until(future.done, "the answer")
    assert future.result().success


def _is_refused_beside_another_driver(person: Person) -> None:
    other = person.robot.create_publisher(TwistStamped, "cmd_vel", COMMAND)
    person.until(lambda: other.get_subscription_count() > 1, "both listen")
    words = "cmd_vel gets commands from another publisher"

    def refused() -> bool:
        message = TwistStamped()
        message.twist.linear.y = 1.0
        other.publish(message)
        return words in person.diagnosis

    person.until(refused, words)
    person.until(lambda: person.speeds()[-1] == 0.0, "zero beside another")
    person.robot.destroy_publisher(other)


def _stops_at_the_end(person: Person, node: Any) -> None:
    node.send(signal.SIGINT)
    person.until(lambda: node.exit_code is not None, "the end")
    person.until(lambda: person.speeds()[-1] == 0.0, "zero at the end")
    assert node.exit_code == 0
