"""What the simulated robot carries out, by the simulated time at which commands were received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.messages import CommandCodec
from ttm_policy.simulator.robot import ReceivedCommands

BASE, GRIPPER = SPEC.action_slices["base"], SPEC.action_slices["gripper"]


class Subscriptions:
    """Takes the place of a node, and hands messages to its subscriptions."""

    def __init__(self) -> None:
        self.receive: dict[str, Callable[[Any], None]] = {}
        self.get_logger = MagicMock()

    def create_subscription(
        self, kind: Any, topic: str, callback: Callable[[Any], None], qos: Any
    ) -> None:
        self.receive[topic] = callback


@pytest.fixture
def node() -> Subscriptions:
    return Subscriptions()


@pytest.fixture
def commands(node: Subscriptions) -> ReceivedCommands:
    codec = CommandCodec(load_contract(), SPEC)
    return ReceivedCommands(node, codec, lockstep=False)  # type: ignore[arg-type]


def test_the_base_stops_by_itself_within_half_a_second(
    node: Subscriptions, commands: ReceivedCommands
) -> None:
    """A tick of 0.2 s carries out what is in force at its end, and the next odometry shows it."""
    command = TwistStamped()
    command.twist.linear.x = 0.3
    for received_s in np.arange(10.0, 10.2, 0.01):
        commands.now_s = float(received_s)
        node.receive["cmd_vel"](command)
        shown = []
        for tick_end_s in (10.2, 10.4, 10.6, 10.8):
            commands.now_s = tick_end_s
            shown.append(float(commands.in_force()[BASE][0]))
        assert shown[0] == pytest.approx(0.3)
        stands_s = 10.2 + 0.2 * shown.index(0.0)
        assert stands_s - received_s <= 0.5 + 1e-9
        assert shown[-1] == 0.0


def test_a_gripper_goal_stays_in_force(node: Subscriptions, commands: ReceivedCommands) -> None:
    names = ["r_gripper_finger_joint", "l_gripper_finger_joint"]
    goal = JointTrajectory(joint_names=names, points=[JointTrajectoryPoint(positions=[0.05, 0.05])])
    node.receive["gripper_controller/joint_trajectory"](goal)
    commands.now_s = 1000.0
    assert commands.in_force()[GRIPPER] == pytest.approx(1.0)


def test_a_robot_waits_in_its_place_for_its_first_command_and_stays_there_at_a_stop(
    node: Subscriptions, commands: ReceivedCommands
) -> None:
    """A gripper stands for all joints: it takes positions."""
    commands.resting = np.zeros(SPEC.action_size, np.float32)
    commands.resting[GRIPPER] = 0.5
    assert np.array_equal(commands.in_force(), commands.resting)
    command = TwistStamped()
    command.twist.linear.x = 0.3
    node.receive["cmd_vel"](command)
    assert commands.in_force()[BASE][0] == pytest.approx(0.3)
    assert np.array_equal(commands.standing_still(), commands.resting)


def test_commands_that_make_no_sense_are_not_carried_out_and_end_nothing(
    node: Subscriptions, commands: ReceivedCommands
) -> None:
    fast, topic = TwistStamped(), "gripper_controller/joint_trajectory"
    fast.twist.linear.x = 0.3
    node.receive["cmd_vel"](fast)
    before = commands.in_force()
    point = JointTrajectoryPoint(positions=[0.01])
    for trajectory in (
        JointTrajectory(),
        JointTrajectory(points=[point]),
        JointTrajectory(joint_names=["stranger"] * 50_000, points=[point]),
        JointTrajectory(joint_names=["l_gripper_finger_joint"]),
    ):
        node.receive[topic](trajectory)
    for value in (float("nan"), float("inf"), 1e300):
        wrong = TwistStamped()
        wrong.twist.linear.x = value
        node.receive["cmd_vel"](wrong)
    np.testing.assert_array_equal(commands.in_force(), before)
    said = [call.args[0] for call in node.get_logger().warning.call_args_list]
    assert len(said) == 7
    assert all(text.endswith("it is not carried out") and len(text) < 400 for text in said)
