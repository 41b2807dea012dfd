"""The shipped contracts drive robots that are made from their own interface descriptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ARM = "/arm_controller/joint_trajectory"
MOST_RAD_S, JOINT3_RAD_S = 0.5, 0.2
"""The parameter, and the speed that the robot's description allows joint3."""
SLOW = {
    "max_forward_m_s": 0.05,
    "max_yaw_rad_s": 0.1,
    "max_joint_rad_s": MOST_RAD_S,
    "max_translation_m": 0.02,
    "max_rotation_rad": 0.05,
}
PATIENT = {
    "engine": "torch",
    "max_age_s": 30.0,
    "stop_after_s": 60.0,
    "lifespan_ticks": 100.0,  # after a late tick the limits begin at an older measurement
}  # a busy machine is no fault here


def _speeds(arm: list[Any]) -> np.ndarray:
    """Return the speeds (n, 6) in rad/s that goals of the arm ask for, of which the first begins at 0."""
    goals = np.array([[0.0] * 6] + [list(message.points[0].positions) for message in arm])
    return np.abs(np.diff(goals, axis=0)) / 0.2


@pytest.fixture
def start_policy(start_node: Any, untrained: Any, config: Path) -> Callable[[str], None]:
    """Start an untrained policy for the robot of a name, with its shipped contract."""

    def start(name: str) -> None:
        start_node(
            "policy_node",
            checkpoint=str(untrained(name)),
            contract=str(config / f"{name}.yaml"),
            instruction="go",
            **SLOW,
            **PATIENT,
        )

    return start


@pytest.mark.parametrize("name", ["fetch", "turtlebot_arm"])
def test_a_policy_drives_the_robot_within_its_limits(
    start_robot: Any, start_policy: Any, name: str
) -> None:
    robot = start_robot(name)
    start_policy(name)
    robot.wait(
        lambda: all(len(got) >= 8 for got in robot.obeyed.values()), "commands on all topics"
    )
    assert robot.rejected == []
    bases = [getattr(message, "twist", message) for message in robot.obeyed["/cmd_vel"]]
    assert max(abs(twist.linear.x) for twist in bases) <= 0.05
    assert max(abs(twist.angular.z) for twist in bases) <= 0.1
    for message in robot.obeyed.get("/servo_node/delta_twist_cmds", []):
        linear, angular = message.twist.linear, message.twist.angular
        assert np.linalg.norm([linear.x, linear.y, linear.z]) * 0.2 <= 0.02 * (1 + 1e-9)
        assert np.linalg.norm([angular.x, angular.y, angular.z]) * 0.2 <= 0.05 * (1 + 1e-9)
    for topic, got in robot.obeyed.items():
        if topic.endswith("joint_trajectory"):
            goals = np.array([message.points[0].positions for message in got])
            assert goals.min() >= -3.0
            if "gripper" in topic:
                assert goals.min() >= 0.0
                assert goals.max() <= 0.05


def test_joints_obey_the_description_of_the_robot(start_robot: Any, start_policy: Any) -> None:
    """The URDF lets joint3 move at 0.2 rad/s and the gripper open to 25 mm."""
    robot = start_robot("turtlebot_arm")
    start_policy("turtlebot_arm")
    arm = robot.obeyed[ARM]
    robot.wait(lambda: len(arm) >= 8, "goals of the arm")
    speeds = _speeds(arm)
    assert speeds.max() <= MOST_RAD_S * (1 + 1e-5)
    assert speeds[:, 2].max() <= JOINT3_RAD_S * (1 + 1e-5)
    assert speeds.max() > 0.0
    hand = [m.points[0].positions[0] for m in robot.obeyed["/gripper_controller/joint_trajectory"]]
    assert max(hand) <= 0.025


def test_a_description_that_is_on_its_way_has_to_come_before_the_first_goal(
    start_robot: Any, start_policy: Any
) -> None:
    robot = start_robot("turtlebot_arm", described=False)
    start_policy("turtlebot_arm")
    arm = robot.obeyed[ARM]
    robot.wait(lambda: "robot_description" in robot.diagnosis, "the reason why it stands still")
    assert not arm
    robot.describe()
    robot.wait(lambda: len(arm) >= 3, "goals of the arm")
    assert _speeds(arm)[:, 2].max() <= JOINT3_RAD_S * (1 + 1e-5)


def test_goals_that_nobody_heard_do_not_carry_the_arm_away(
    start_robot: Any, start_policy: Any
) -> None:
    """A controller that comes late gets goals from where the arm is, and not where it was sent to."""
    robot = start_robot("turtlebot_arm", deaf=ARM)
    start_policy("turtlebot_arm")
    robot.wait(lambda: len(robot.obeyed["/cmd_vel"]) >= 50, "commands of more than five ticks")
    robot.hear(ARM)
    arm = robot.obeyed[ARM]
    robot.wait(lambda: len(arm) >= 3, "goals of the arm")
    assert _speeds(arm).max() <= MOST_RAD_S * (1 + 1e-5)
