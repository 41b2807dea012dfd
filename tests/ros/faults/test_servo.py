"""How far a servo with a short time-out gets with the commands of a whole policy node, over DDS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from trajectory_msgs.msg import JointTrajectory

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.messages import stamp_to_ns
from ttm_policy.qos import COMMAND

CAN = "pick up the red can"
SERVO_TIMEOUT_S = 0.1
"""That of MoveIt Servo: it stops this long after the newest command."""
WINDOW = 3
"""Ticks over which the servo's path is compared with what was commanded.

They are few, since a machine that is busy with other things interrupts a process every now and then.
"""

Robot = Any


@dataclass
class Servo:
    """A stand-in of MoveIt Servo. Goals of the gripper, which are sent once a tick, tell its ticks apart."""

    sent_s: list[float] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    ticks_ns: list[int] = field(default_factory=list)

    def take(self, message: TwistStamped, info: Any) -> None:
        linear = message.twist.linear
        self.sent_s.append(info["source_timestamp"] * 1e-9)
        self.speeds.append(float(np.linalg.norm([linear.x, linear.y, linear.z])))
        self.stamps_ns.append(stamp_to_ns(message.header.stamp))

    def take_goal(self, message: JointTrajectory) -> None:
        self.ticks_ns.append(stamp_to_ns(message.header.stamp))

    def share(self) -> float:
        """Return how far it went in the last `WINDOW` ticks, as a share of what they commanded."""
        begins = [self.stamps_ns.index(ns) for ns in self.ticks_ns if ns in self.stamps_ns]
        if len(begins) <= WINDOW:
            return 0.0
        begins = begins[-WINDOW - 1 :]
        part = slice(begins[0], begins[-1])
        gaps_s = np.diff(self.sent_s[begins[0] : begins[-1] + 1])
        went = np.dot(self.speeds[part], np.minimum(gaps_s, SERVO_TIMEOUT_S))
        asked = sum(self.speeds[begin] for begin in begins[:-1]) * SPEC.control_dt_s
        return float(went / max(asked, 1e-9))


@pytest.fixture
def servo(robot: Robot) -> Iterator[Servo]:
    made = Servo()
    listeners = [
        robot.create_subscription(TwistStamped, "servo_node/delta_twist_cmds", made.take, COMMAND),
        robot.create_subscription(
            JointTrajectory, "gripper_controller/joint_trajectory", made.take_goal, COMMAND
        ),
    ]
    yield made
    for listener in listeners:
        robot.destroy_subscription(listener)


@pytest.mark.parametrize(("fault", "every"), [("", 1), ("ponder", 12)])
def test_a_servo_travels_what_the_policy_commands(
    robot: Robot, servo: Servo, start_policy: Any, fault: str, every: int
) -> None:
    """Also if the network takes longer than a tick, and no new frame is there when it has answered."""
    robot.repair()
    robot.every.update(dict.fromkeys(("head", "wrist"), every))
    process = start_policy(
        fault, instruction=CAN, use_sim_time=True, max_age_s=2.0, stop_after_s=600.0
    )
    since_s = time.time()
    robot.wait(lambda: robot.moved_at_s > since_s, "motion")
    robot.wait(lambda: servo.share() >= 0.95, "the commanded displacement")
    assert process.end() == 0
