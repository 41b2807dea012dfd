"""What is sent between two ticks, over DDS, and how far a servo with a short time-out gets with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.control.command_publishers import CommandPublishers
from ttm_policy.control.control_loop import PolicyTick
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import COMMAND

WAIT_S = 120.0
SERVO, GRIPPER = "servo_node/delta_twist_cmds", "gripper_controller/joint_trajectory"
SERVO_TIMEOUT_S = 0.1
"""That of MoveIt Servo: it stops this long after the newest command."""
WINDOW = 8
"""Commands over which a servo's path is compared with what was commanded: more than a tick.

It is short, since a machine that is busy with other things interrupts a process every now and then.
"""


class Robot:
    """Ticks with one action, and receives the commands."""

    def __init__(self, node: Node, **parameters: Any) -> None:
        self.node, self.ticks, self.stops = node, 0, 0
        codec = CommandCodec(load_contract(), SPEC)
        self.commands = CommandPublishers(
            node, codec, PolicyParameters(**parameters), on_stop=self.count_stop
        )
        self.got: dict[str, list[Any]] = {topic: [] for topic in codec.types()}
        for topic, kind in codec.types().items():
            node.create_subscription(kind, topic, self.got[topic].append, COMMAND)
        self._action = np.full(SPEC.action_size, 0.01, np.float32)
        self.wait(lambda: all(node.count_publishers(topic) for topic in self.got))

    def count_stop(self) -> None:
        self.stops += 1

    def tick(self) -> None:
        self.ticks += 1
        stamp = self.node.get_clock().now().to_msg()
        self.commands.publish(PolicyTick(self._action, self._action), stamp)

    def wait(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s
            rclpy.spin_once(self.node, timeout_sec=0.05)

    def moves(self) -> bool:
        return bool(self.got[SERVO]) and self.got[SERVO][-1].twist.linear.x != 0


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    made = Node("test_command_publishers")
    yield made
    made.destroy_node()
    rclpy.shutdown()


def _travelled(commands: list[Any]) -> float:
    """Return how far a stand-in of MoveIt Servo goes with these commands, as a share of the commanded."""
    stamps_s = [c.header.stamp.sec + 1e-9 * c.header.stamp.nanosec for c in commands]
    speeds, gaps_s = [c.twist.linear.x for c in commands[:-1]], np.diff(stamps_s)
    moved = np.dot(speeds, np.minimum(gaps_s, SERVO_TIMEOUT_S))
    return float(moved / max(np.dot(speeds, gaps_s), 1e-9))


@pytest.mark.parametrize("command_rate_hz", [20.0, 50.0, 0.0])
def test_a_servo_travels_what_was_commanded_only_if_commands_are_sent_again(
    node: Node, command_rate_hz: float
) -> None:
    robot = Robot(node, command_rate_hz=command_rate_hz, lifespan_ticks=100.0)
    node.create_timer(SPEC.control_dt_s, robot.tick)
    got = robot.got[SERVO]
    if command_rate_hz:
        robot.wait(lambda: len(got) > WINDOW and _travelled(got[-WINDOW:]) >= 0.95)
        assert len(robot.got[GRIPPER]) <= robot.ticks  # a goal is sent once
        assert len(got) > robot.ticks
    else:
        robot.wait(lambda: len(got) > WINDOW)
        assert _travelled(got[-WINDOW:]) < 0.75


@pytest.mark.parametrize("command_rate_hz", [30.0, 0.0])
def test_a_command_that_no_tick_follows_ends_with_zero(node: Node, command_rate_hz: float) -> None:
    """Also one that is sent once, and the limits learn that the robot stands."""
    robot = Robot(node, command_rate_hz=command_rate_hz, lifespan_ticks=3.0)
    robot.tick()
    robot.wait(robot.moves)
    robot.wait(lambda: not robot.moves())
    assert (robot.commands.expired, robot.stops) == (1, 1)
    assert robot.got[SERVO][-1].twist.angular.z == 0


def test_nothing_is_sent_again_after_a_stop_nor_in_lockstep(node: Node) -> None:
    robot = Robot(node, lifespan_ticks=100.0)
    robot.tick()
    robot.wait(robot.moves)
    robot.commands.stop()
    robot.wait(lambda: not robot.moves())
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        rclpy.spin_once(node, timeout_sec=0.05)
    assert not robot.moves()
    robot.commands.close()

    node.create_timer(0.05, lambda: None)
    still = Robot(node, lockstep=True)
    still.got[SERVO].clear()
    still.tick()
    still.wait(still.moves)
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        rclpy.spin_once(node, timeout_sec=0.05)
    assert sum(m.twist.linear.x != 0 for m in still.got[SERVO]) == 1
