"""What a policy node sends under the limits, whatever its contract makes of the action."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from failing_robot import strict_contract
from geometry_msgs.msg import TwistStamped
from trajectory_msgs.msg import JointTrajectory

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.qos import COMMAND

TICKS = 12
PATIENT = {"max_age_s": 60.0, "lifespan_ticks": 100.0, "stop_after_s": 600.0}
"""So that a busy machine does not stop the robot, which would begin at rest again."""
LIMITS = {
    "max_forward_m_s": 0.05,
    "max_forward_accel_m_s2": 0.05,
    "max_forward_jerk_m_s3": 0.1,
    "max_yaw_rad_s": 0.1,
    "max_yaw_accel_rad_s2": 0.2,
    "max_translation_m": 0.02,
    "max_rotation_rad": 0.03,
}
PERIOD_S, A_LITTLE = SPEC.control_dt_s, 1 + 1e-5

Robot = Any
Sent = dict[str, list[Any]]


@pytest.fixture
def contract(tmp_path: Path, observations: list[Any]) -> Path:
    """All velocities are a hundred times as large, and the gripper is at the end of its workspace in z."""
    data = strict_contract()
    for part in ("arm_translation", "arm_rotation", "base"):
        fields = data["actions"][part]["fields"]
        data["actions"][part]["fields"] = [{"field": path, "scale": 100.0} for path in fields]
    for field in data["actions"]["gripper"]["fields"]:
        field["scale"] = 100.0
    x, y, z = (float(value) for value in observations[0]["ee_pose"][:3])
    data["workspace"] = {
        "action": "arm_translation",
        "position": "ee_pose",
        "min": [x - 1, y - 1, z - 1e-4],
        "max": [x + 1, y + 1, z + 1e-4],
    }
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def sent(robot: Robot) -> Iterator[Sent]:
    """Every command, by its topic."""
    got: Sent = {}
    kinds = {
        "cmd_vel": TwistStamped,
        "servo_node/delta_twist_cmds": TwistStamped,
        "gripper_controller/joint_trajectory": JointTrajectory,
    }
    listeners = [
        robot.create_subscription(kind, topic, got.setdefault(topic, []).append, COMMAND)
        for topic, kind in kinds.items()
    ]
    yield got
    for listener in listeners:
        robot.destroy_subscription(listener)


def _numbers(messages: list[Any]) -> np.ndarray:
    """Return the linear and the angular velocity of twists: (n, 6)."""
    twists = [message.twist for message in messages]
    return np.array([[getattr(v, a) for v in (t.linear, t.angular) for a in "xyz"] for t in twists])


def _time(message: Any) -> tuple[int, int]:
    return message.header.stamp.sec, message.header.stamp.nanosec


def _runs(sent: Sent) -> list[list[float]]:
    """Return the forward speed at rest and at each tick (m/s), from one stop of the robot to the next.

    A tick alone sends a goal of the gripper. All else that `cmd_vel` gets repeats a tick, some at the very
    time of the next one, or is a stop.
    """
    ticks = {_time(goal) for goal in sent["gripper_controller/joint_trajectory"]}
    runs, last = [[0.0]], None
    for message, numbers in zip(sent["cmd_vel"], _numbers(sent["cmd_vel"]), strict=True):
        if not numbers.any():
            runs.append([0.0])
            last = None
        elif (now := _time(message)) in ticks:
            runs[-1][len(runs[-1]) - (now == last) :] = [numbers[0]]
            last = now
    return runs


def test_limits_bound_the_messages_whatever_the_scale(
    robot: Robot, start_policy: Any, contract: Path, sent: Sent
) -> None:
    goals = sent["gripper_controller/joint_trajectory"]
    process = start_policy(
        contract=str(contract),
        instruction="pick up the red can",
        use_sim_time=True,
        **PATIENT,
        **LIMITS,
    )
    robot.wait(lambda: len(goals) >= TICKS, "ticks")
    assert process.end() == 0
    base, arm = _numbers(sent["cmd_vel"]), _numbers(sent["servo_node/delta_twist_cmds"])
    assert 0.05 / 2 < np.abs(base[:, 0]).max() <= 0.05 * A_LITTLE
    assert 0.1 / 2 < np.abs(base[:, 5]).max() <= 0.1 * A_LITTLE
    assert np.linalg.norm(arm[:, :3], axis=1).max() * PERIOD_S <= 0.02 * A_LITTLE
    lifespan_s = PATIENT["lifespan_ticks"] * PERIOD_S
    assert 0.0 < np.abs(arm[:, 2]).max() * lifespan_s <= 1.01e-4
    assert 0.015 < np.linalg.norm(arm[:, 3:], axis=1).max() * PERIOD_S <= 0.03 * A_LITTLE
    positions = [p for goal in goals for p in goal.points[0].positions]
    assert 0.0 <= min(positions) <= max(positions) <= 0.05 < 2 * max(positions)
    runs = _runs(sent)
    assert sum(len(speeds) - 1 for speeds in runs) >= TICKS - 1
    for speeds in runs:
        assert np.abs(np.diff(speeds)).max(initial=0.0) <= 0.05 * PERIOD_S * A_LITTLE
        assert np.abs(np.diff(speeds, 2)).max(initial=0.0) <= 0.1 * PERIOD_S**2 * A_LITTLE
