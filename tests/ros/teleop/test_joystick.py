"""A gamepad of this computer: its device is a pipe into which the test writes the kernel's events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
from sensor_msgs.msg import Joy
from teleoperation import ServedNodes

from ttm_policy.teleop.devices import AXIS, BUTTON, EVENT, INITIAL, JoyPublisher, Joystick


class Device:
    """What the kernel does when a gamepad is plugged in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def happens(self, *events: tuple[int, int, int]) -> None:
        """Write events: value, kind and number of each."""
        for value, kind, number in events:
            os.write(self._file, EVENT.pack(0, value, kind, number))

    def unplug(self) -> None:
        os.close(self._file)
        self.path.unlink()


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "js0")


def test_axes_and_buttons_are_those_of_the_kernel_turned_as_in_ros(device: Device) -> None:
    device.happens(
        (0, AXIS | INITIAL, 0), (0, AXIS | INITIAL, 1), (-32767, AXIS | INITIAL, 2),
        (0, BUTTON | INITIAL, 0), (0, BUTTON | INITIAL, 1),
    )  # fmt: skip
    joystick = Joystick(str(device.path))
    assert joystick.read()
    assert (joystick.axes, joystick.buttons) == ([0.0, 0.0, 1.0], [0, 0])  # a released trigger is 1
    device.happens((-32767, AXIS, 1), (32767, AXIS, 0), (1, BUTTON, 1))  # forward and right
    assert joystick.read()
    assert joystick.read()
    assert (joystick.axes, joystick.buttons) == ([-1.0, 1.0, 1.0], [0, 1])
    device.unplug()
    assert not joystick.read()
    assert (joystick.axes, joystick.buttons, joystick.problem) == ([], [], "")


def test_a_device_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    joystick = Joystick(str(tmp_path))
    assert not joystick.read()
    assert joystick.problem == f"the gamepad {tmp_path} cannot be read (Is a directory)"


def test_a_file_that_is_no_gamepad_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("hello")
    joystick = Joystick(str(path))
    assert not joystick.read()
    assert joystick.problem == f"{path} is no gamepad; give its device, such as /dev/input/js0"


class Two(ServedNodes):
    """A person's node and a robot's, which hears the gamepad."""

    def __init__(self) -> None:
        self.person, self.robot = rclpy.create_node("person"), rclpy.create_node("robot")
        self.heard: list[Joy] = []
        self.robot.create_subscription(Joy, "joy", self.heard.append, 10)
        super().__init__(self.person, self.robot)

    def until_published_by(self, *nodes: str) -> None:
        self.until(
            lambda: (
                tuple(info.node_name for info in self.robot.get_publishers_info_by_topic("joy"))
                == nodes
            )
        )


@pytest.fixture
def two() -> Iterator[Two]:
    rclpy.init()
    nodes = Two()
    yield nodes
    nodes.close()


def test_it_is_published_as_long_as_nobody_else_does(device: Device, two: Two) -> None:
    JoyPublisher(two.person, str(device.path))
    device.happens((-32767, AXIS, 1), (1, BUTTON, 5))
    two.until(lambda: bool(two.heard) and list(two.heard[-1].buttons) == [0, 0, 0, 0, 0, 1])
    assert list(two.heard[-1].axes) == [0.0, 1.0]
    other = two.robot.create_publisher(Joy, "joy", 10)
    two.until_published_by("robot")
    two.robot.destroy_publisher(other)
    two.until_published_by("person")
    device.unplug()
    two.until_published_by()
