"""What is sent between two ticks, over DDS, and how far a servo with a short time-out gets with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.commands import CommandPublishers
from ttm_policy.contract import load_contract
from ttm_policy.guards import E_STOP_TOPIC, EStop, EStopTopic, StopThread
from ttm_policy.messages import CommandCodec
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import COMMAND, LATCHED

WAIT_S = 120.0
SERVO, GRIPPER = "servo_node/delta_twist_cmds", "gripper_controller/joint_trajectory"
SERVO_TIMEOUT_S = 0.1
"""That of MoveIt Servo: it stops this long after the newest command."""
WINDOW = 8
"""Commands over which a servo's path is compared with what was commanded: more than a tick.

It is short, since a machine that is busy with other things interrupts a process every now and then.
"""


def _loaded() -> Any:
    return SimpleNamespace(codec=CommandCodec(load_contract(), SPEC), limits=MagicMock())


class Robot:
    """Ticks with one action, and receives the commands."""

    def __init__(self, stop: StopThread, **parameters: Any) -> None:
        node = stop.owner
        self.node, self.ticks = node, 0
        loaded = _loaded()
        codec, self.limits = loaded.codec, loaded.limits
        self.commands = CommandPublishers(stop, loaded, PolicyParameters(**parameters))
        self.got: dict[str, list[Any]] = {topic: [] for topic in codec.types()}
        for topic, kind in codec.types().items():
            node.create_subscription(kind, topic, self.got[topic].append, COMMAND)
        self._action = np.full(SPEC.action_size, 0.01, np.float32)
        self.wait(lambda: all(node.count_publishers(topic) for topic in self.got))

    def tick(self) -> None:
        self.ticks += 1
        stamp = self.node.get_clock().now().to_msg()
        self.commands.send(self._action, stamp)
        self.commands.publish_action(self._action)

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


@pytest.fixture
def stop(node: Node) -> Iterator[StopThread]:
    thread = StopThread(node)
    yield thread
    thread.close()


def _travelled(commands: list[Any]) -> float:
    """Return how far a stand-in of MoveIt Servo goes with these commands, as a share of the commanded."""
    stamps_s = [c.header.stamp.sec + 1e-9 * c.header.stamp.nanosec for c in commands]
    speeds, gaps_s = [c.twist.linear.x for c in commands[:-1]], np.diff(stamps_s)
    moved = np.dot(speeds, np.minimum(gaps_s, SERVO_TIMEOUT_S))
    return float(moved / max(np.dot(speeds, gaps_s), 1e-9))


@pytest.mark.parametrize("command_rate_hz", [20.0, 50.0, 0.0])
def test_a_servo_travels_what_was_commanded_only_if_commands_are_sent_again(
    node: Node, stop: StopThread, command_rate_hz: float
) -> None:
    robot = Robot(stop, command_rate_hz=command_rate_hz, lifespan_ticks=100.0)
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
def test_a_command_that_no_tick_follows_ends_with_zero(
    stop: StopThread, command_rate_hz: float
) -> None:
    """Also one that is sent once, and the limits learn that the robot stands."""
    robot = Robot(stop, command_rate_hz=command_rate_hz, lifespan_ticks=3.0)
    robot.tick()
    robot.wait(robot.moves)
    robot.wait(lambda: not robot.moves())
    robot.commands.acknowledge_expiry()
    robot.commands.acknowledge_expiry()
    assert (robot.commands.expired, robot.limits.halt.call_count) == (1, 1)
    assert robot.got[SERVO][-1].twist.angular.z == 0


def test_nothing_is_sent_again_after_a_stop_nor_in_lockstep(node: Node, stop: StopThread) -> None:
    robot = Robot(stop, lifespan_ticks=100.0)
    robot.tick()
    robot.wait(robot.moves)
    robot.commands.stop()
    robot.wait(lambda: not robot.moves())
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        rclpy.spin_once(node, timeout_sec=0.05)
    assert not robot.moves()

    node.create_timer(0.05, lambda: None)
    still = Robot(stop, lockstep=True)
    still.got[SERVO].clear()
    still.tick()
    still.wait(still.moves)
    until_s = time.monotonic() + 0.3
    while time.monotonic() < until_s:
        rclpy.spin_once(node, timeout_sec=0.05)
    assert sum(m.twist.linear.x != 0 for m in still.got[SERVO]) == 1


class Watcher:
    """Receives the commands beside a node that does nothing, and presses the emergency stop."""

    def __init__(self, commands: CommandPublishers) -> None:
        self._node, self.speeds = Node("watcher"), list[float]()
        self._node.create_subscription(TwistStamped, SERVO, self._receive, COMMAND)
        self._button = self._node.create_publisher(Bool, E_STOP_TOPIC, LATCHED)
        self.wait(lambda: self._node.count_publishers(SERVO) == 1)
        self.wait(lambda: commands._publishers[SERVO].get_subscription_count() == 1)

    def _receive(self, message: TwistStamped) -> None:
        self.speeds.append(message.twist.linear.x)

    def press(self, pressed: bool) -> None:
        self._button.publish(Bool(data=pressed))

    def wait(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s
            rclpy.spin_once(self._node, timeout_sec=0.05)

    def close(self) -> None:
        self._node.destroy_node()


class Held:
    """The commands of a node whose own thread is held: nobody spins it."""

    def __init__(self, stop: StopThread, **parameters: Any) -> None:
        self.stop = stop
        self.e_stop = EStopTopic(stop, EStop(rearm=False, timeout_s=0.0), lambda: None)
        self.commands = CommandPublishers(stop, _loaded(), PolicyParameters(**parameters))
        self.commands.is_open = True
        self.watcher = Watcher(self.commands)

    def tick(self) -> None:
        action = np.full(SPEC.action_size, 0.01, np.float32)
        stamp = self.stop.owner.get_clock().now().to_msg()
        self.commands.send(action, stamp)


@pytest.fixture
def held(stop: StopThread, request: pytest.FixtureRequest) -> Iterator[Held]:
    """With the parameters that a test names."""
    made = Held(stop, **request.param)
    yield made
    made.watcher.close()


@pytest.mark.parametrize("held", [{"lifespan_ticks": 100.0}], indirect=True)
def test_a_press_stops_a_node_that_is_held_and_what_it_decides_meanwhile_is_not_sent(
    held: Held,
) -> None:
    watcher = held.watcher
    held.tick()
    watcher.wait(lambda: len(watcher.speeds) > 3 and watcher.speeds[-1] > 0)
    watcher.press(True)
    watcher.wait(lambda: watcher.speeds[-1] == 0)
    watcher.press(False)  # nor is it after a release of which the node knows nothing
    for _ in range(3):
        held.tick()
    held.commands.stop()
    watcher.wait(lambda: watcher.speeds[-2:] == [0.0, 0.0])
    assert watcher.speeds.count(0.0) == 2
    while held.e_stop.problem:
        time.sleep(0.01)
    held.tick()
    watcher.wait(lambda: watcher.speeds[-1] > 0)


@pytest.mark.parametrize("held", [{"lifespan_ticks": 2.0}, {"command_rate_hz": 0.0}], indirect=True)
def test_a_command_of_a_node_that_is_held_ends_with_zero(held: Held) -> None:
    watcher = held.watcher
    held.tick()
    watcher.wait(lambda: watcher.speeds[-1:] == [0.0])
    held.tick()  # decided before the node knows that the robot stands
    assert not held.commands._held.in_force
    held.commands.acknowledge_expiry()
    moved = len(watcher.speeds)
    held.tick()
    watcher.wait(lambda: watcher.speeds[-1] > 0)
    assert watcher.speeds[moved] > 0


@pytest.mark.parametrize("held", [{"lockstep": True}], indirect=True)
def test_a_simulator_in_lockstep_is_answered_by_zero_during_a_stop(held: Held) -> None:
    watcher = held.watcher
    held.tick()
    watcher.wait(lambda: watcher.speeds[-1:] != [])
    watcher.press(True)
    watcher.wait(lambda: watcher.speeds[-1] == 0)
    held.tick()
    watcher.wait(lambda: len(watcher.speeds) == 3)
    assert watcher.speeds[1:] == [0.0, 0.0]


@pytest.mark.parametrize("held", [{}], indirect=True)
def test_a_failure_of_the_thread_that_stops_the_robot_is_one_of_the_node(held: Held) -> None:
    """Its process ends for it, and stops the robot."""

    def fail() -> None:
        raise RuntimeError("the stop fails")

    held.stop.on_stop = fail
    held.watcher.press(True)
    with pytest.raises(RuntimeError, match="the stop fails"):
        held.watcher.wait(lambda: bool(rclpy.spin_once(held.stop.owner, timeout_sec=0.05)))
