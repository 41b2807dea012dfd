"""A running policy node over DDS under one fault after another: it stands still, says why, and recovers.

One process goes through the whole table. The robot moves when a test begins, and when it ends. At the end its
actions are compared with those of a run without any fault: no fault has left a trace in the memory.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import Bool

from ttm.policy.run.runner import PolicyRunner
from ttm_policy.qos import LATCHED

CAN = "pick up the red can"
MAX_AGE_S, TICK_S = 0.6, 0.2
SLACK_S = 1.0
"""For a computer that is busy with other work."""

Robot = Any
Fault = Callable[[Robot], Callable[[], object] | None]
"""Begins a fault, and returns what ends it beside `Robot.repair`."""


@pytest.fixture(scope="module")
def policy(robot: Robot, start_policy: Any) -> Iterator[Any]:
    process = start_policy(
        instruction=CAN,
        use_sim_time=True,
        max_age_s=MAX_AGE_S,
        stop_after_s=600.0,
        e_stop_rearm=False,
    )
    robot.wait_for_motion()
    yield process
    assert process.exit_code is None
    assert process.end() == 0


def _shifted(seconds: float, *names: str) -> Fault:
    return lambda robot: robot.offset_s.update(dict.fromkeys(names or robot.names, seconds))


def _frozen(*names: str) -> Fault:
    return lambda robot: robot.frozen.update(names or robot.names)


def _silent(*names: str) -> Fault:
    return lambda robot: robot.silent.update(names or robot.names)


def _damaged(name: str, change: Callable[[Any], object]) -> Fault:
    return lambda robot: robot.damage.update({name: change})


def _clock_stops(robot: Robot) -> None:
    robot.clock_runs = False


def _clock_stops_and_all_is_silent(robot: Robot) -> None:
    robot.clock_runs = False
    robot.silent.update(robot.names)


def _second_camera(robot: Robot) -> Callable[[], object]:
    publisher = robot.create_publisher(Image, "head/image_raw", 5)
    return lambda: robot.destroy_publisher(publisher)


def _command_of_another(robot: Robot) -> Callable[[], object]:
    publisher = robot.create_publisher(TwistStamped, "cmd_vel", 5)

    def send() -> None:
        message = TwistStamped()
        message.header.frame_id, message.twist.linear.x = "somebody_else", 0.3
        publisher.publish(message)

    timer = robot.create_timer(0.1, send)
    return lambda: (robot.destroy_timer(timer), robot.destroy_publisher(publisher))


def _e_stop(qos: QoSProfile) -> Fault:
    def press(robot: Robot) -> Callable[[], object]:
        publisher = robot.create_publisher(Bool, "e_stop", qos)
        timer = robot.create_timer(0.1, lambda: publisher.publish(Bool(data=robot.pressed)))
        robot.pressed = True

        def release() -> None:
            robot.pressed = False
            robot.wait(lambda: "emergency stop" not in robot.message, "the release")
            robot.destroy_timer(timer)
            robot.destroy_publisher(publisher)

        return release

    return press


def _set_pixels(value: int) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.data = array("B", bytes([value]) * len(message.data))

    return change


def _cut(message: Any) -> None:
    message.data = message.data[:100]


def _set_speed(value: float) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.twist = type(message.twist)()
        message.twist.twist.linear.x = value

    return change


def _set_frame(message: Any) -> None:
    message.header.frame_id = "world"


BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)

FAULTS: dict[str, tuple[Fault, str]] = {
    "all stamps are ahead": (_shifted(100.0), "ahead of the clock"),
    "one stamp is ahead": (_shifted(100.0, "ee_pose"), "ee_pose (/ee_pose): the observation is"),
    "all stamps are old": (_shifted(-100.0), "s old"),
    "one stamp is old": (_shifted(-5.0, "wrist"), "wrist (/wrist/image_raw)"),
    "all stamps are frozen": (_frozen(), "s old|no new stamp"),
    "one stamp is frozen": (_frozen("joint_positions"), "joint_positions (/joint_states)"),
    "all sensors are silent": (_silent(), "s old|no new stamp"),
    "one sensor is silent": (_silent("base_velocity"), "base_velocity (/odom)"),
    "the report of the robot is silent": (_silent("executed action"), "executed action"),
    "the clock stops": (_clock_stops, "the clock of ROS has stood still|no new stamp"),
    "the clock and the sensors stop": (_clock_stops_and_all_is_silent, "stood still|no new stamp"),
    "inputs are too far apart": (_shifted(-0.45, "head"), "max_skew_s of the contract is 0.3"),
    "a camera has two publishers": (_second_camera, "head (/head/image_raw) has 2 publishers"),
    "somebody else commands": (_command_of_another, "/cmd_vel gets commands from another"),
    "a value is NaN": (_damaged("base_velocity", _set_speed(float("nan"))), "not finite"),
    "a value is implausible": (_damaged("base_velocity", _set_speed(1e6)), "accepts -10 to 10"),
    "a camera is black": (_damaged("wrist", _set_pixels(0)), "contrast of 0.0"),
    "an image is cut off": (_damaged("head", _cut), "check the camera driver"),
    "a pose is in another frame": (_damaged("ee_pose", _set_frame), "is in frame 'world'"),
    "e-stop, best effort": (_e_stop(BEST_EFFORT), "emergency stop: it is pressed"),
    "e-stop, reliable": (_e_stop(QoSProfile(depth=10)), "emergency stop: it is pressed"),
    "e-stop, latched": (_e_stop(LATCHED), "emergency stop: it is pressed"),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_stops_the_robot_and_the_node_says_why(
    name: str, robot: Robot, policy: Any
) -> None:
    begin, words = FAULTS[name]
    begun_s = time.time()
    end = begin(robot)
    robot.wait(lambda: any(w in robot.message for w in words.split("|")), f"the words '{words}'")
    assert robot.level != b"\x00"
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    time.sleep(2 * TICK_S)  # nothing that moves follows
    assert robot.stands
    assert robot.moved_at_s - begun_s <= MAX_AGE_S + TICK_S + SLACK_S
    robot.repair()
    if end is not None:
        end()
    robot.wait_for_motion()


@pytest.mark.parametrize("seconds", [100.0, -0.4, -50.0])
def test_the_policy_goes_on_after_a_jump_of_the_clock(
    seconds: float, robot: Robot, policy: Any
) -> None:
    robot.jump(seconds)
    robot.wait_for_motion()


def test_a_frame_enters_the_memory_at_most_once(robot: Robot, policy: Any) -> None:
    """A camera of 2.5 Hz, on a policy of 5 Hz."""
    robot.every["head"] = 6
    robot.wait(lambda: "waiting for a new camera frame" in robot.message, "the pause")
    frames, tick = robot.frames, robot.ticks[-1]
    robot.wait(lambda: robot.ticks[-1] >= tick + 5, "five ticks")
    assert robot.ticks[-1] - tick <= robot.frames - frames + 1  # one may be on its way
    robot.repair()
    robot.wait_for_motion()


def test_no_fault_has_left_a_trace_in_the_memory(
    robot: Robot, policy: Any, checkpoint: Path, observations: list[Any]
) -> None:
    """Every action is that of a run without faults after as many memory writes."""
    robot.silent.update(robot.names)
    robot.wait(lambda: robot.stands, "the end")
    actions, ticks = list(robot.actions), robot.ticks[-1]
    robot.repair()
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    expected = []
    for _ in range(ticks):
        if runner.tick:
            runner.executed(np.zeros(runner.spec.action_size, np.float32))
        expected.append(runner.step(observations[0]).values)
    tick = 0
    for action in actions:
        while not np.array_equal(action, expected[tick]):
            tick += 1
            assert tick < ticks, "an action of another memory"
        tick += 1
    assert len(actions) > ticks / 2
