"""Drives by a gamepad, from the messages of `joy_node` or any other publisher of `sensor_msgs/Joy`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from rclpy.node import Node
from sensor_msgs.msg import Joy

from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.source import Wish

TIMEOUT_S = 0.3
"""The longest silence of the topic. `joy_node` repeats its state 20 times a second."""


class JoyState:
    """The newest state of a gamepad, by names such as `axis 1`, `button 4` and `trigger 2`.

    A trigger is an axis that is 1 while it is released and -1 while it is pressed, and 0 before it was
    first touched, as `joy_node` reports the triggers of most gamepads.
    """

    def __init__(self) -> None:
        self.heard_s = -float("inf")
        self._message = Joy()

    def take(self, message: Joy, now_s: float) -> None:
        """Take over the state of a message that was received at `now_s`."""
        self._message, self.heard_s = message, now_s

    def __call__(self, control: str) -> float:
        """Return the deflection of a control; 0 for one that the gamepad does not have, and for no number."""
        kind, _, number = control.partition(" ")
        values = self._message.buttons if kind == "button" else self._message.axes
        place = int(number)
        value = float(values[place]) if place < len(values) else 0.0
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


class Gamepad:
    """A `Source` that listens to a topic of type `sensor_msgs/Joy`."""

    name = "gamepad"
    timeout_s = TIMEOUT_S
    problem = ""

    def __init__(self, controls: Controls, node: Node, topic: str, clutch: str = "") -> None:
        """clutch: a button that is needed besides, or an empty text."""
        self._controls, self._node, self.state = controls, node, JoyState()
        self._topic = topic
        drives = controls.map.drives
        named = (clutch, *(name for d in drives for name in (d.plus, d.minus, d.dead_man)))
        self._needed = list(dict.fromkeys(filter(None, named)))
        self._gives_back = self._was_pressed = False
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

    def gives_back(self) -> bool:
        """Return whether its button was pressed since the last call."""
        asked, self._gives_back = self._gives_back, False
        return asked

    def close(self) -> None:
        """Destroy the subscription."""
        self._node.destroy_subscription(self._subscription)
