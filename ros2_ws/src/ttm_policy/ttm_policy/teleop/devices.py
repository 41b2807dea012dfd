"""The keys of a terminal and a gamepad as devices, and a gamepad of this computer as `joy_node` shows it."""

from __future__ import annotations

import math
import os
import select
import struct
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import Joy

from ttm.policy.errors import UserError
from ttm_policy.programs import steady_timer
from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.source import Source, Wish

HOLD_S = 0.25
"""How long a key counts as held after it was read.

A terminal tells no releases: a key that is held is read again and again, after a first pause. A tap is
therefore a short nudge, and the robot stops this long after a key was released.
"""
SPEED_STEPS = {"+": 1.25, "-": 1 / 1.25}
"""Key -> what all speeds are multiplied by."""


class Keyboard(Source):
    """Reads keys."""

    name = "keyboard"
    timeout_s = HOLD_S

    def __init__(
        self,
        controls: Controls,
        read: Callable[[], str | None],
        on_other_key: Callable[[str], None],
    ) -> None:
        """read: as `read_key`. on_other_key: called with every key that drives nothing."""
        self._controls, self._read, self._on_other_key = controls, read, on_other_key
        self._pressed_s: dict[str, float] = {}
        self._known = {key for drive in controls.map.drives for key in (drive.plus, drive.minus)}

    def wish(self, now_s: float) -> Wish | None:
        while (key := self._read()) is not None:
            self._take(key, now_s)
        held = {key for key, at_s in self._pressed_s.items() if now_s - at_s <= HOLD_S}
        values = self._controls.wish(lambda key: float(key in held), now_s)
        return None if values is None else Wish(values, max(self._pressed_s.values()))

    def _take(self, key: str, now_s: float) -> None:
        if key in self._known:
            self._pressed_s[key] = now_s
        elif key == self._controls.map.gives_back:
            self._gives_back = True
            self._pressed_s.clear()
        elif key in SPEED_STEPS:
            self._controls.factor *= SPEED_STEPS[key]
            print(f"speed: {self._controls.factor:.0%}", flush=True)
        else:
            self._on_other_key(key)


ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_NAMED = {"\n": "enter", "\r": "enter", "\t": "tab", "\x7f": "backspace"}
_NAMED |= {f"\x1b{mode}{key}": name for mode in "[O" for key, name in ARROWS.items()}
ESCAPE, LONGEST = "\x1b", 3
"""How the sequences above begin, and their length."""


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Let the terminal give each key at once in the `with` block. Raises `UserError` without a terminal."""
    if not sys.stdin.isatty():
        raise UserError("keys need a terminal; start the node in one, or use the services")
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def read_key() -> str | None:
    """Return the next key that was pressed, or None. A closed terminal reads as `q`.

    Arrows, enter, tab and backspace have names; all other keys are their character.
    """

    def read() -> str | None:
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"

    if (key := read()) is None:
        return None
    while key.startswith(ESCAPE) and len(key) < LONGEST and (more := read()) is not None:
        key += more
    return _NAMED.get(key, key)


JOY = "joy"
"""The topic of a gamepad, of `joy_node` or any other publisher of `sensor_msgs/Joy`."""
TIMEOUT_S = 0.3
"""The longest silence of a topic. `joy_node` repeats its state 20 times a second."""


class JoyState:
    """The newest state of a gamepad, by names such as `axis 1`, `button 4` and `trigger 2`.

    A trigger is an axis that is 1 while it is released and -1 while it is pressed, and 0 before it was
    first touched, as `joy_node` reports the triggers of most gamepads.
    """

    def __init__(self) -> None:
        self.heard_s = -math.inf
        self.message = Joy()

    def take(self, message: Joy, now_s: float) -> None:
        """Take over the state of a message that was received at `now_s`."""
        self.message, self.heard_s = message, now_s

    def has(self, control: str) -> bool:
        """Return whether the gamepad has a control."""
        return self._value(control) is not None

    def __call__(self, control: str) -> float:
        """Return the deflection of a control; 0 for one that the gamepad lacks, and for no number."""
        value = self._value(control) or 0.0
        if not math.isfinite(value):
            return 0.0
        return max(-value, 0.0) if control.startswith("trigger") else value

    def _value(self, control: str) -> float | None:
        kind, number = control.split()
        values = self.message.buttons if kind == "button" else self.message.axes
        return float(values[int(number)]) if int(number) < len(values) else None


def nothing_from(node: Node, topic: str, kind: Any) -> str:
    """Return in words that no message of a topic has come."""
    type_name = f"{kind.__module__.partition('.')[0]}/{kind.__name__}"
    name = f"{node.resolve_topic_name(topic)} ({type_name})"
    return f"nothing has come from {name} yet: check its name and publisher"


class Gamepad(Source):
    """Listens to the topic `joy`."""

    name = "gamepad"
    timeout_s = TIMEOUT_S

    def __init__(self, controls: Controls, node: Node, clutch: str = "") -> None:
        """clutch: a button that is needed besides, or an empty text."""
        self._controls, self._node, self.state = controls, node, JoyState()
        self._was_pressed = False
        drives = controls.map.drives
        named = (clutch, *(name for d in drives for name in (d.plus, d.minus, d.dead_man)))
        self._needed = list(dict.fromkeys(filter(None, named)))
        node.create_subscription(Joy, JOY, self._receive, SENSOR)

    @property
    def unheard(self) -> str:
        """That nothing has come from the topic, or which axes and buttons its messages do not have."""
        if self._needed and self.state.heard_s < 0:
            return nothing_from(self._node, JOY, Joy)
        if missing := [name for name in self._needed if not self.state.has(name)]:
            axes, buttons = len(self.state.message.axes), len(self.state.message.buttons)
            has = f"{self._node.resolve_topic_name(JOY)} has {axes} axes and {buttons} buttons"
            return f"{has}, but the controls name {', '.join(missing)}"
        return ""

    def _receive(self, message: Joy) -> None:
        self.state.take(message, time.monotonic())
        button = self._controls.map.gives_back
        pressed = bool(button) and self.state(button) > 0.5
        self._gives_back |= pressed and not self._was_pressed
        self._was_pressed = pressed

    def wish(self, now_s: float) -> Wish | None:
        values = self._controls.wish(self.state, now_s)
        return None if values is None else Wish(values, self.state.heard_s)


EVENT = struct.Struct("IhBB")
"""Time in ms, value, kind and number: `struct js_event` of linux/joystick.h."""
BUTTON, AXIS, INITIAL = 0x01, 0x02, 0x80
"""Kinds of events. When a device is opened, the kernel tells the initial state of all its controls."""
FULL = 32767
"""The value of an axis at full deflection."""
MOST_CONTROLS = 64


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


PERIOD_S = 0.05
"""The time between two messages, as of `joy_node`."""


class JoyPublisher:
    """Publishes a `Joystick` on the topic `joy`, as long as nobody else publishes there."""

    def __init__(self, node: Node, path: str) -> None:
        self._node, self._joystick = node, Joystick(path)
        self._publisher: Publisher[Joy] | None = None
        self._warned = ""
        steady_timer(node, PERIOD_S, self._update)

    def _update(self) -> None:
        others = self._node.count_publishers(JOY) - (self._publisher is not None)
        if others > 0 or not self._joystick.read():
            self._joystick.close()
            if self._publisher is not None:
                self._node.destroy_publisher(self._publisher)
                self._publisher = None
            if self._joystick.problem not in ("", self._warned):
                self._node.get_logger().warning(self._joystick.problem)
            self._warned = self._joystick.problem
            return
        if self._publisher is None:
            self._publisher = self._node.create_publisher(Joy, JOY, 10)
            self._node.get_logger().info(f"the gamepad {self._joystick.path} is read")
        message = Joy(axes=self._joystick.axes, buttons=self._joystick.buttons)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)
