"""What a tracked hand and a leader arm share: a clutch, buttons, and a stop for jumps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from rclpy.node import Node
from std_msgs.msg import Bool

from ttm_policy.qos import SENSOR
from ttm_policy.teleop.controls import Controls, Vector
from ttm_policy.teleop.controls_file import is_joy
from ttm_policy.teleop.gamepad import Gamepad, nothing_from
from ttm_policy.teleop.source import Wish

JOY = "joy"
TIMEOUT_S = 0.3
"""The longest silence of the hand and of its clutch."""
LONGEST_STEP_S = 0.1
"""A motion goes on for at most so long at once, however late it is asked for."""


class Clutch:
    """The button that connects hand and robot: one of the topic `joy`, or a topic of its own."""

    def __init__(self, node: Node, name: str, pad: Gamepad) -> None:
        self._node, self._name, self._pad = node, name, pad
        self._button = name if is_joy(name) else ""
        self._pressed, self._heard_s = False, -float("inf")
        self._subscription = (
            None if self._button else node.create_subscription(Bool, name, self._receive, SENSOR)
        )

    def _receive(self, message: Bool) -> None:
        self._pressed, self._heard_s = message.data, time.monotonic()

    @property
    def is_held(self) -> bool:
        """Whether it was pressed when it was heard last."""
        return self._pad.state(self._button) > 0.5 if self._button else self._pressed

    @property
    def heard_s(self) -> float:
        """When it was heard last, on the steady clock."""
        return self._pad.state.heard_s if self._button else self._heard_s

    @property
    def unheard(self) -> str:
        """That nothing has come from its own topic, or an empty text."""
        missing = not self._button and self._heard_s < 0
        return nothing_from(self._node, self._name, Bool) if missing else ""

    def close(self) -> None:
        """Destroy the subscription."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)


class HandSource(ABC):
    """A `ttm_policy.teleop.source.Source` that follows a hand while its clutch is held.

    What is no motion of a hand, such as the jump of a tracker that has lost its target, ends the
    connection until the clutch is pressed anew.
    """

    timeout_s = TIMEOUT_S

    def __init__(
        self, node: Node, name: str, topic: tuple[Any, str], clutch: str, controls: Controls
    ) -> None:
        """topic: its type and its name. controls: of the buttons and sticks that drive besides."""
        self.name, self._node, self._controls = name, node, controls
        self.problem, self._topic = "", topic
        self._pad = Gamepad(controls, node, JOY, clutch if is_joy(clutch) else "")
        self._clutch = Clutch(node, clutch, self._pad)
        self._heard_s = self._asked_s = -float("inf")
        self._subscription = node.create_subscription(
            *topic, lambda message: self.take(message, time.monotonic()), SENSOR
        )

    @property
    def unheard(self) -> str:
        """What of hand, clutch and `joy` was never heard."""
        kind, topic = self._topic
        hand = nothing_from(self._node, topic, kind) if self._heard_s < 0 else ""
        return "; ".join(filter(None, (hand, self._clutch.unheard, self._pad.unheard)))

    def take(self, message: Any, now_s: float) -> None:
        """Take a message of the hand that was received at a time on the steady clock."""
        silent, self._heard_s = now_s - self._heard_s > self.timeout_s, now_s
        if silent or not self._clutch.is_held:
            self.let_go()
        try:
            self.follow(message)
        except ValueError as error:
            self.let_go()
            if self._clutch.is_held:
                self.problem = f"{self.name} {error}; press its clutch anew"

    def wish(self, now_s: float) -> Wish | None:
        """Return what the hand does while its clutch is held, and what the buttons ask for."""
        step_s, self._asked_s = min(now_s - self._asked_s, LONGEST_STEP_S), now_s
        buttons = self._pad.wish(now_s)
        if not self._clutch.is_held:
            self.problem = ""
            self.let_go()
        if not self._clutch.is_held or self.problem:
            return buttons
        buttons = buttons or Wish(self._controls.still, now_s)
        values = buttons.values.copy()
        heard_s = min(self._heard_s, self._clutch.heard_s, buttons.stamp_s)
        if now_s - heard_s > self.timeout_s:
            self.let_go()
        self.move(values, step_s)
        return Wish(values, heard_s)

    @abstractmethod
    def follow(self, message: Any) -> None:
        """Take the motion since the message before.

        Raises `ValueError`, which says what it does, if this is no motion of a hand.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Forget where the hand was: the next message begins a motion."""

    @abstractmethod
    def move(self, values: Vector, step_s: float) -> None:
        """Set what the hand moves in a wish (A,). step_s: how long the wish is in force."""

    def gives_back(self) -> bool:
        """Return whether the button for it was pressed since the last call."""
        return self._pad.gives_back()

    def close(self) -> None:
        """Destroy all subscriptions."""
        self._pad.close()
        self._clutch.close()
        self._node.destroy_subscription(self._subscription)
