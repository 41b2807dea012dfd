"""Reads a gamepad of this computer, and publishes it as `joy_node` does, where no such node runs."""

from __future__ import annotations

import os
import struct

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import Joy

EVENT = struct.Struct("IhBB")
"""Time in ms, value, kind and number: `struct js_event` of linux/joystick.h."""
BUTTON, AXIS, INITIAL = 0x01, 0x02, 0x80
"""Kinds of events. When a device is opened, the kernel tells the initial state of all its controls."""
FULL = 32767
"""The value of an axis at full deflection."""
MOST_CONTROLS = 64
PERIOD_S = 0.05
"""The time between two messages, as of `joy_node`."""


class Joystick:
    """A gamepad by its device file, such as `/dev/input/js0`. It may come and go."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.axes: list[float] = []
        """Deflections from -1 to 1. Forward, left, and a released trigger are positive, as in ROS."""
        self.buttons: list[int] = []
        """1 for each button that is pressed, and 0 for the others."""
        self.problem = ""
        """Why a device that is there cannot be read, or an empty text."""
        self._file: int | None = None

    def read(self) -> bool:
        """Take what has happened since the last call; return whether the gamepad is there."""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            while data := os.read(self._file, EVENT.size * MOST_CONTROLS):
                for _, value, kind, number in EVENT.iter_unpack(data):
                    self._take(value, kind & ~INITIAL, number)
        except BlockingIOError:  # nothing has happened since
            self.problem = ""
            return True
        except FileNotFoundError:
            self.problem = ""
        except struct.error:
            self.problem = f"{self.path} is no gamepad; give its device, such as /dev/input/js0"
        except OSError as error:
            self.problem = f"the gamepad {self.path} cannot be read ({error.strerror})"
            if isinstance(error, PermissionError):
                self.problem += "; add this user to the group `input`"
        self.close()
        return False

    def close(self) -> None:
        """Close the device, and forget its state."""
        if self._file is not None:
            os.close(self._file)
        self._file, self.axes, self.buttons = None, [], []

    def _take(self, value: int, kind: int, number: int) -> None:
        if kind == AXIS:
            self.axes += [0.0] * (number + 1 - len(self.axes))
            self.axes[number] = max(-value / FULL, -1.0) + 0.0
        elif kind == BUTTON:
            self.buttons += [0] * (number + 1 - len(self.buttons))
            self.buttons[number] = value


class JoyPublisher:
    """Publishes a `Joystick` on a topic of type `sensor_msgs/Joy` as long as nobody else does."""

    def __init__(self, node: Node, path: str, topic: str) -> None:
        self._node, self._topic, self._joystick = node, topic, Joystick(path)
        self._publisher: Publisher[Joy] | None = None
        self._told = ""
        # On the steady clock, since simulated time may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(PERIOD_S, self.update, clock=steady)

    def update(self) -> None:
        """Publish the state of the gamepad, if it is there and nobody else publishes one."""
        others = self._node.count_publishers(self._topic) - (self._publisher is not None)
        if others > 0 or not self._joystick.read():
            self._end()
            self._tell(self._joystick.problem)
            return
        if self._publisher is None:
            self._publisher = self._node.create_publisher(Joy, self._topic, 10)
            self._node.get_logger().info(f"the gamepad {self._joystick.path} is read")
        message = Joy(axes=self._joystick.axes, buttons=self._joystick.buttons)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def close(self) -> None:
        """Publish no more."""
        self._node.destroy_timer(self._timer)
        self._end()

    def _end(self) -> None:
        self._joystick.close()
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
            self._publisher = None

    def _tell(self, problem: str) -> None:
        if problem and problem != self._told:
            self._node.get_logger().warning(problem)
        self._told = problem
