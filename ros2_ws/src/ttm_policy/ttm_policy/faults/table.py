"""The faults under which a policy must not move the robot, and what the node says about each.

They are those of a robot under the contract of `strict_contract`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from geometry_msgs.msg import TwistStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import Bool

from ttm_policy.faults.failing_robot import FOREIGN, FailingRobot
from ttm_policy.qos import LATCHED

Begin = Callable[[FailingRobot], Callable[[], object] | None]
"""Begins a fault, and returns what ends it beside `FailingRobot.repair`."""
REPEAT_S = 0.1


@dataclass(frozen=True)
class Fault:
    """One fault."""

    begin: Begin
    words: str
    """What the diagnostics say; alternatives are separated by `|`."""

    def told(self, message: str) -> bool:
        """Return whether a message of the diagnostics names this fault."""
        return any(words in message for words in self.words.split("|"))


def _shifted(seconds: float, *names: str) -> Begin:
    return lambda robot: robot.offset_s.update(dict.fromkeys(names or robot.names, seconds))


def _frozen(*names: str) -> Begin:
    return lambda robot: robot.frozen.update(names or robot.names)


def _silent(*names: str) -> Begin:
    return lambda robot: robot.silent.update(names or robot.names)


def _damaged(name: str, change: Callable[[Any], object]) -> Begin:
    return lambda robot: robot.damage.update({name: change})  # type: ignore[dict-item]


def _clock_stops(robot: FailingRobot) -> None:
    robot.clock_runs = False


def _clock_stops_and_all_is_silent(robot: FailingRobot) -> None:
    robot.clock_runs = False
    robot.silent.update(robot.names)


def _second_camera(robot: FailingRobot) -> Callable[[], object]:
    publisher = robot.create_publisher(Image, "head/image_raw", 5)
    return lambda: robot.destroy_publisher(publisher)


def _command_of_another(robot: FailingRobot) -> Callable[[], object]:
    publisher = robot.create_publisher(TwistStamped, "cmd_vel", 5)

    def send() -> None:
        message = TwistStamped()
        message.header.frame_id, message.twist.linear.x = FOREIGN, 0.3
        publisher.publish(message)

    timer = robot.create_timer(REPEAT_S, send)
    return lambda: (robot.destroy_timer(timer), robot.destroy_publisher(publisher))


def _e_stop(qos: QoSProfile) -> Begin:
    def press(robot: FailingRobot) -> Callable[[], object]:
        publisher, pressed = robot.create_publisher(Bool, "e_stop", qos), [True]
        timer = robot.create_timer(REPEAT_S, lambda: publisher.publish(Bool(data=pressed[0])))

        def release() -> None:
            pressed[0] = False
            robot.wait(lambda: "it is pressed" not in robot.message, "the release")
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


_BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_PRESSED = "emergency stop: it is pressed"

FAULTS: Mapping[str, Fault] = {
    "all stamps are ahead": Fault(_shifted(100.0), "ahead of the clock"),
    "one stamp is ahead": Fault(
        _shifted(100.0, "ee_pose"), "ee_pose (/ee_pose): the observation is"
    ),
    "all stamps are old": Fault(_shifted(-100.0), "s old"),
    "one stamp is old": Fault(_shifted(-5.0, "wrist"), "wrist (/wrist/image_raw)"),
    "all stamps are frozen": Fault(_frozen(), "s old|no new stamp"),
    "one stamp is frozen": Fault(_frozen("joint_positions"), "joint_positions (/joint_states)"),
    "all sensors are silent": Fault(_silent(), "s old|no new stamp"),
    "one sensor is silent": Fault(_silent("base_velocity"), "base_velocity (/odom)"),
    "the report of the robot is silent": Fault(_silent("executed action"), "executed action"),
    "the clock stops": Fault(_clock_stops, "the clock of ROS has stood still|no new stamp"),
    "the clock and the sensors stop": Fault(
        _clock_stops_and_all_is_silent, "stood still|no new stamp"
    ),
    "inputs are too far apart": Fault(_shifted(-0.45, "head"), "max_skew_s of the contract is 0.3"),
    "a camera has two publishers": Fault(_second_camera, "head (/head/image_raw) has 2 publishers"),
    "somebody else commands": Fault(_command_of_another, "/cmd_vel gets commands from another"),
    "a value is NaN": Fault(_damaged("base_velocity", _set_speed(float("nan"))), "not finite"),
    "a value is implausible": Fault(
        _damaged("base_velocity", _set_speed(1e6)), "accepts -10 to 10"
    ),
    "a camera is black": Fault(_damaged("wrist", _set_pixels(0)), "contrast of 0.0"),
    "an image is cut off": Fault(_damaged("head", _cut), "check the camera driver"),
    "a pose is in another frame": Fault(_damaged("ee_pose", _set_frame), "is in frame 'world'"),
    "e-stop, best effort": Fault(_e_stop(_BEST_EFFORT), _PRESSED),
    "e-stop, reliable": Fault(_e_stop(QoSProfile(depth=10)), _PRESSED),
    "e-stop, latched": Fault(_e_stop(LATCHED), _PRESSED),
}
