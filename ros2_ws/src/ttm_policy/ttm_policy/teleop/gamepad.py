"""Drives by a gamepad, from the messages of `joy_node` or any other publisher of `sensor_msgs/Joy`."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterable
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import Joy

from ttm_policy.programs import create_steady_timer
from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.source import Source, Wish

TIMEOUT_S = 0.3
"""The longest silence of the topic. `joy_node` repeats its state 20 times a second."""


class JoyState:
    """The newest state of a gamepad, by names such as `axis 1`, `button 4` and `trigger 2`.

    A trigger is an axis that is 1 while it is released and -1 while it is pressed, and 0 before it was
    first touched, as `joy_node` reports the triggers of most gamepads.
    """

    def __init__(self) -> None:
        self.heard_s = -math.inf
        self._message = Joy()

    def take(self, message: Joy, now_s: float) -> None:
        """Take over the state of a message that was received at `now_s`."""
        self._message, self.heard_s = message, now_s

    def __call__(self, control: str) -> float:
        """Return the deflection of a control; 0 for one that the gamepad lacks, and for no number."""
        kind, _, number = control.partition(" ")
        values = self._message.buttons if kind == "button" else self._message.axes
        value = float(values[int(number)]) if int(number) < len(values) else 0.0
        if not math.isfinite(value):
            return 0.0
        return max(-value, 0.0) if kind == "trigger" else value

    def lacks(self, controls: Iterable[str]) -> str:
        """Return in words which of the controls the gamepad does not have; an empty text for none."""
        axes, buttons = len(self._message.axes), len(self._message.buttons)
        missing = [
            name
            for name in controls
            if int(name.partition(" ")[2]) >= (buttons if name.startswith("button") else axes)
        ]
        has = f"has {axes} axes and {buttons} buttons"
        return f"{has}, but the controls name {', '.join(missing)}" if missing else ""


def nothing_from(node: Node, topic: str, kind: Any) -> str:
    """Return in words that no message of a topic has come."""
    type_name = f"{kind.__module__.partition('.')[0]}/{kind.__name__}"
    name = f"{node.resolve_topic_name(topic)} ({type_name})"
    return f"nothing has come from {name} yet: check its name and publisher"


class Gamepad(Source):
    """Listens to a topic of type `sensor_msgs/Joy`."""

    name = "gamepad"
    timeout_s = TIMEOUT_S

    def __init__(self, controls: Controls, node: Node, topic: str, clutch: str = "") -> None:
        """clutch: a button that is needed besides, or an empty text."""
        self._controls, self._node, self.state = controls, node, JoyState()
        self._topic, self._was_pressed = topic, False
        drives = controls.map.drives
        named = (clutch, *(name for d in drives for name in (d.plus, d.minus, d.dead_man)))
        self._needed = list(dict.fromkeys(filter(None, named)))
        self._subscription = node.create_subscription(Joy, topic, self._receive, SENSOR)

    @property
    def unheard(self) -> str:
        """That nothing has come from the topic, or which axes and buttons its messages do not have."""
        if not self._needed:
            return ""
        if self.state.heard_s < 0:
            return nothing_from(self._node, self._topic, Joy)
        lacks = self.state.lacks(self._needed)
        return f"{self._node.resolve_topic_name(self._topic)} {lacks}" if lacks else ""

    def _receive(self, message: Joy) -> None:
        self.state.take(message, time.monotonic())
        button = self._controls.map.gives_back
        pressed = bool(button) and self.state(button) > 0.5
        self._gives_back |= pressed and not self._was_pressed
        self._was_pressed = pressed

    def wish(self, now_s: float) -> Wish | None:
        """Return what buttons and sticks ask for; None while no dead-man button is held."""
        values = self._controls.wish(self.state, now_s)
        return None if values is None else Wish(values, self.state.heard_s)

    def close(self) -> None:
        """Destroy the subscription."""
        self._node.destroy_subscription(self._subscription)


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
        self.problem = ""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            while data := os.read(self._file, EVENT.size * MOST_CONTROLS):
                for _, value, kind, number in EVENT.iter_unpack(data):
                    self._take(value, kind & ~INITIAL, number)
        except BlockingIOError:  # nothing has happened since
            return True
        except FileNotFoundError:
            pass
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
    """Publishes a `Joystick` as `joy_node` would, as long as nobody else publishes that topic."""

    def __init__(self, node: Node, path: str, topic: str) -> None:
        self._node, self._topic, self._joystick = node, topic, Joystick(path)
        self._publisher: Publisher[Joy] | None = None
        self._warned = ""
        self._timer = create_steady_timer(node, PERIOD_S, self._update)

    def _update(self) -> None:
        others = self._node.count_publishers(self._topic) - (self._publisher is not None)
        if others > 0 or not self._joystick.read():
            self._end()
            if self._joystick.problem not in ("", self._warned):
                self._node.get_logger().warning(self._joystick.problem)
            self._warned = self._joystick.problem
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
