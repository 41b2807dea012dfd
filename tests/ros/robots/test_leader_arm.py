"""A leader arm moves a robot with six joints over DDS, within its limits, until something stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from ttm_policy.inputs import PERIOD_S
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop import session as teleop_session
from ttm_policy.teleop.session import RobotOutput, TeleopSession, load_context
from ttm_policy.teleop_node import make_source

ARM = "/arm_controller/joint_trajectory"
JOINTS = ["shoulder", *(f"joint{number}" for number in range(2, 7)), "gripper_joint"]
CONTROLS = """
leader: {topic: leader/joint_states, clutch: leader/clutch, scale: 2, joints: {joint1: shoulder}, drives: []}
"""
MOST_RAD_S = 2.0
JOINT3_RAD_S = 0.2
"""The speed that the robot's description allows joint3."""


class Leader:
    """An arm in a person's hands, whose first and third joint they move by `step_rad` at each message."""

    def __init__(self, robot: Any, contract: Path, controls: Path) -> None:
        self.robot = robot
        self.node = Node("teleop_node")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        parameters = TeleopParameters(
            source="leader",
            contract=str(contract),
            controls=str(controls),
            rate_hz=5.0,
            max_joint_rad_s=MOST_RAD_S,
            max_age_s=60.0,  # a busy machine is no fault here
        )
        context = load_context(parameters)
        source = make_source(self.node, context, parameters, lambda _: None)
        self.session = TeleopSession(self.node, context, parameters, source)
        self._joints = self.node.create_publisher(JointState, "leader/joint_states", 10)
        self._clutch = self.node.create_publisher(Bool, "leader/clutch", 10)
        self.angles = np.zeros(len(JOINTS))
        self.step_rad, self.clutch, self.sends = 0.0, False, True

    def live(self) -> None:
        self.angles[[0, 2]] += self.step_rad
        self._clutch.publish(Bool(data=self.clutch))
        if self.sends:
            self._joints.publish(JointState(name=JOINTS, position=self.angles.tolist()))
        until_s = time.monotonic() + PERIOD_S
        for _ in range(10):  # however busy the machine is
            self._executor.spin_once(timeout_sec=0.0)
        while time.monotonic() < until_s:
            self._executor.spin_once(timeout_sec=PERIOD_S)

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + 120
        while not done():
            assert time.monotonic() < deadline_s, f"{what}: {self.said}; {self.robot.rejected[:3]}"
            self.live()

    @property
    def said(self) -> str:
        return str(self.session.diagnosis().message)

    @property
    def goals(self) -> list[float]:
        """The goals of the first joint that the robot got, after where it was at first."""
        return [0.0, *(m.points[0].positions[0] for m in list(self.robot.obeyed[ARM]))]

    def move(self, step_rad: float, to: float) -> None:
        """Move the leader until the goal of the first joint is where it should be."""
        self.step_rad = step_rad
        self.until(lambda: np.sign(step_rad) * (self.goals[-1] - to) > 0, f"a goal at {to}")
        self.step_rad = 0.0

    def require_stop(self, words: str) -> None:
        """Wait until something is told, after which no goal comes, however the leader moves."""
        self.until(lambda: words in self.said, words)
        time.sleep(2 * PERIOD_S)  # a goal may be under way to the robot's thread
        count, self.step_rad = len(self.goals), 0.01
        for _ in range(5):
            self.live()
        assert len(self.goals) == count
        self.step_rad = 0.0


@pytest.fixture
def leader(
    start_robot: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Leader]:
    monkeypatch.setattr(teleop_session, "UNHEARD_AFTER_S", 0.0)
    (tmp_path / "controls.yaml").write_text(CONTROLS)
    robot = start_robot("turtlebot_arm")
    found = Leader(robot, config / "turtlebot_arm.yaml", tmp_path / "controls.yaml")
    yield found
    found.session.close()
    found.node.destroy_node()


def note_goals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which all goals of the arm go that are sent, (T, 6), and NaN at each stop.

    A busy robot may miss some. After a stop, goals begin where the robot is.
    """
    sent, send, rest = [], RobotOutput._send, RobotOutput.rest

    def noted(output: RobotOutput, topic: str, message: Any) -> None:
        if topic in ARM:
            sent.append(message.points[0].positions)
        send(output, topic, message)

    def noted_rest(output: RobotOutput) -> None:
        sent.append([np.nan] * 6)
        rest(output)

    monkeypatch.setattr(RobotOutput, "_send", noted)
    monkeypatch.setattr(RobotOutput, "rest", noted_rest)
    return sent


def test_a_leader_arm_moves_the_joints_within_the_limits(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = note_goals(monkeypatch)
    leader.sends = False
    leader.session.step()
    assert "nothing has come from /leader/joint_states (sensor_msgs/JointState) yet" in leader.said
    assert "nothing has come from /leader/clutch (std_msgs/Bool) yet" in leader.said
    leader.sends = True
    leader.until(lambda: leader.said == "nobody drives", "both are heard")
    leader.require_stop("nobody drives")

    leader.clutch = True
    leader.until(lambda: leader.said == "leader arm drives", "the clutch")
    leader.move(0.05, to=0.3)
    leader.move(-0.05, to=0.1)
    leader.clutch = False
    leader.require_stop("nobody drives")
    leader.clutch = True
    leader.until(lambda: leader.said == "leader arm drives", "the clutch")
    leader.move(0.05, to=0.2)  # from where the robot is, though the leader has moved on

    leader.angles[4] += 1.0
    leader.require_stop("leader arm has jumped by 1.0 rad; press its clutch again")
    leader.clutch = False
    leader.until(lambda: leader.said == "nobody drives", "let go")
    leader.clutch = True
    leader.move(-0.05, to=0.1)

    leader.sends = False
    leader.require_stop("leader arm has been silent for more than 0.3 s")
    leader.sends = True
    leader.move(0.05, to=0.2)
    assert leader.robot.rejected == []
    _require_limits(np.array(sent))


def _require_limits(goals: np.ndarray) -> None:
    """goals: (T, 6), in the order in which they were sent, and NaN at each stop."""
    steps = np.nanmax(np.abs(np.diff(goals, axis=0)), axis=0)
    assert steps[0] == pytest.approx(MOST_RAD_S * PERIOD_S, rel=1e-3), "as fast as it may"
    assert steps[2] <= JOINT3_RAD_S * PERIOD_S * (1 + 1e-4)
    assert steps[[1, 3, 4, 5]].max() < 1e-6, "the jump moved nothing"
