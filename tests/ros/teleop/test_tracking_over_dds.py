"""A tracked hand drives a robot over DDS: the messages of hand, clutch, robot and emergency stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from sensor_msgs.msg import Joy

from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.session import TeleopSession, load_context
from ttm_policy.teleop_node import make_source

TWIST = "servo_node/delta_twist_cmds"
PATIENT = TeleopParameters(source="pose", max_age_s=60.0)
"""A busy machine is no fault here."""


class Person:
    """Holds a tracked controller, which moves by `step_m` with each message."""

    def __init__(self, robot: Any, observation: dict[str, np.ndarray]) -> None:
        self.robot, self._observation = robot, observation
        self.node = Node("teleop_node")
        robot._executor.add_node(self.node)
        context = load_context(PATIENT)
        source = make_source(self.node, context, PATIENT, lambda _: None)
        self.session = TeleopSession(self.node, context, PATIENT, source)
        self._joy = robot.create_publisher(Joy, "joy", 10)
        self._hand = robot.create_publisher(PoseStamped, "hand_pose", 10)
        self.x, self.step_m, self.clutch = 0.0, 0.002, True

    def live(self) -> None:
        self.robot.time_ns = time.time_ns()
        self.robot.observe(self._observation)
        self._joy.publish(Joy(axes=[0.0] * 8, buttons=[0, 0, 0, 0, int(self.clutch)]))
        self.x += self.step_m
        message = PoseStamped()
        message.pose.position.x, message.pose.orientation.w = self.x, 1.0
        self._hand.publish(message)
        until_s = time.monotonic() + 0.02
        while time.monotonic() < until_s:
            self.robot._executor.spin_once(timeout_sec=0.01)

    @property
    def speed(self) -> float:
        sent = self.robot.commands[TWIST]
        return float(sent[-1].twist.linear.x) if sent else 0.0

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline_s, f"{what}: {self.speed}, {self.session.problem}"
            self.live()

    def drive(self) -> None:
        self.until(lambda: self.speed > 0 and self.session.driver == "hand", "the robot drives")


@pytest.fixture
def person(free_robot: Any, observations: list[dict[str, np.ndarray]]) -> Iterator[Person]:
    found = Person(free_robot, observations[0])
    yield found
    found.session.close()
    free_robot._executor.remove_node(found.node)
    found.node.destroy_node()


def test_a_hand_drives_while_its_clutch_is_held(person: Person) -> None:
    person.clutch = False
    for _ in range(5):
        person.live()
    assert not person.robot.commands[TWIST]
    person.clutch = True
    person.drive()
    person.clutch = False
    person.until(lambda: person.speed == 0.0 and not person.session.driver, "stopped by the clutch")
    person.clutch = True
    person.drive()

    person.step_m = 0.5
    person.until(lambda: "hand has jumped by 0.50 m" in person.session.problem, "the reason")
    person.until(lambda: person.speed == 0.0, "stopped by the jump")
    person.step_m, person.clutch = 0.002, False
    person.until(lambda: not person.session.problem, "let go")
    person.clutch = True
    person.drive()

    person.robot.press_e_stop(True)
    person.until(lambda: person.speed == 0.0, "stopped by the emergency stop")
    person.until(lambda: "emergency stop" in person.session.problem, "the reason")


def test_the_controls_are_printed_and_read(
    person: Person, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    context, file = load_context(PATIENT), tmp_path / "controls.yaml"
    make_source(person.node, context, PATIENT, lambda _: None)
    printed = capsys.readouterr().out
    assert "clutch: button 4" in printed
    file.write_text(printed)
    with_file = replace(PATIENT, controls=str(file))
    make_source(person.node, context, with_file, lambda _: None)
    assert capsys.readouterr().out == printed
