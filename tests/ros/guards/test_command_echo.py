"""Whose commands are on the command topics."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not here")

import rclpy
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttm_policy import guards as command_echo
from ttm_policy.guards import CALM_S, CommandEcho, ForeignCommand
from ttm_policy.qos import COMMAND

TOPIC = "gripper_controller/joint_trajectory"


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    made = Node("test_command_echo")
    yield made
    made.destroy_node()
    rclpy.shutdown()


def _command(position: float) -> JointTrajectory:
    """A message with padding: after each string up to three bytes say nothing."""
    names = ["r_gripper_finger_joint", "l_gripper_finger_joint"]
    point = JointTrajectoryPoint(positions=[position, position])
    message = JointTrajectory(joint_names=names, points=[point])
    message.header.frame_id = "base_link"
    return message


def _use_the_heap() -> None:
    """Leave bytes behind where the next messages are serialised."""
    junk = [os.urandom(random.choice((64, 128, 180, 256, 512))) for _ in range(200)]
    junk.clear()


def test_own_commands_are_known_and_others_are_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_echo, "time", SimpleNamespace(monotonic=lambda: 100.0))
    publisher = node.create_publisher(JointTrajectory, TOPIC, COMMAND)
    received: list[JointTrajectory] = []
    node.create_subscription(JointTrajectory, TOPIC, received.append, COMMAND)
    echo = CommandEcho(node, {TOPIC: JointTrajectory})

    def send(message: JointTrajectory) -> None:
        count, until_s = len(received), time.monotonic() + 60.0
        while len(received) == count and time.monotonic() < until_s:
            publisher.publish(message)
            rclpy.spin_once(node, timeout_sec=0.2)
        for _ in range(4):
            rclpy.spin_once(node, timeout_sec=0.01)

    for index in range(60):
        own = _command(0.01 * index)
        echo.sent(TOPIC, own)
        _use_the_heap()
        send(own)
    echo.require_alone(100.0)
    send(_command(7.0))
    with pytest.raises(ForeignCommand, match="gets commands from another publisher"):
        echo.require_alone(100.0)
    echo.require_alone(100.0 + CALM_S)
