"""Whether the emergency stop lets the robot move. It uses no ROS, so that tests can set the time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_STATE_S = 5.0
"""How long the robot waits for the first message of a publisher of the emergency stop.

A process that is started while the button is pressed does not move before it has heard so.
"""
REARM = "call the service rearm to go on"
"""The end of each reason that lasts until a person calls that service."""
RELEASED = f"it was released; {REARM}"
"""What holds the robot after a release."""


MOST_PUBLISHERS = 64
"""So many publishers are told apart; all others count as one."""


@dataclass
class _Button:
    """What one publisher has said last, and when."""

    pressed: bool
    said: bool
    """Its last message. One that may be of another publisher releases nothing."""
    heard_s: float
    sent_ns: int
    repeats: bool = False
    """Whether it has said so more than once, and must not fall silent."""


class EStop:
    """The state of the emergency stop, from the messages of its topic.

    Each publisher is a button of its own: the robot stops while one of them is pressed, whatever the others
    say. One that is gone while it is pressed, or while it must be heard, holds the robot until `arm`.

    rearm: whether the robot waits for `arm` after all buttons were released. timeout_s: the longest
    silence of a publisher that has repeated its message, after which the robot stops as if the button were
    pressed; 0 to accept any. disarmed: why the robot waits for `arm` from the start, or an empty text. All
    times are those of a steady clock, in seconds.
    """

    def __init__(self, *, rearm: bool, timeout_s: float, disarmed: str = ""):
        self._rearm, self.timeout_s = rearm, timeout_s
        self._buttons: dict[bytes | None, _Button] = {}
        self._disarmed = disarmed
        """Why the robot waits for `arm`, or an empty text."""
        self._expected_s: float | None = None

    @property
    def pressed(self) -> bool:
        """Whether one of the buttons is pressed."""
        return any(button.pressed for button in self._buttons.values())

    def heard(
        self,
        pressed: bool,
        wall_s: float,
        publisher: bytes | None = None,
        *,
        sent_ns: int = 0,
        alone: bool = True,
    ) -> None:
        """Take note of a message; of each publisher, the newest one counts.

        publisher: its identity; None where rclpy does not tell it. Then one button stands for all, which is
        released by a message only if its publisher is `alone`. sent_ns: when the message was sent, which is
        the same for all copies of it.
        """
        self._lose_if_silent(wall_s)
        if pressed and self._rearm:
            self._disarm()
        if publisher not in self._buttons and len(self._buttons) >= MOST_PUBLISHERS:
            publisher = None
        button = self._buttons.setdefault(publisher, _Button(pressed, pressed, wall_s, sent_ns))
        button.repeats |= not (pressed or button.pressed) and sent_ns != button.sent_ns
        button.said, button.heard_s, button.sent_ns = pressed, wall_s, sent_ns
        if pressed or publisher is not None or alone:
            button.pressed = pressed

    def arm(self, living: Collection[bytes]) -> bool:
        """Let the robot move again. Return False while a button is pressed.

        living: the publishers that are there. What others have said last is forgotten.
        """
        self._buttons = {
            publisher: button
            for publisher, button in self._buttons.items()
            if publisher in living or (publisher is None and living)
        }
        if None in self._buttons:
            self._buttons[None].pressed = self._buttons[None].said
        if not self.pressed:
            self._disarmed = ""
        return not self.pressed

    def problem(self, wall_s: float, publishers: int) -> str:
        """Return why the robot must not move, or an empty text. publishers: those of the topic."""
        self._lose_if_silent(wall_s)
        if self.pressed:
            return "it is pressed"
        if self.timeout_s and self._silence_s(wall_s) > self.timeout_s:
            replaced = (
                "; call the service rearm if it has gone for good" if self._another(wall_s) else ""
            )
            return (
                f"a publisher of its topic is silent; each must send a message every {self.timeout_s:g} s "
                f"(e_stop_timeout_s){replaced}"
            )
        if self._disarmed:
            return self._disarmed
        return "its state is not known yet" if self._is_expected(wall_s, publishers) else ""

    def _silence_s(self, wall_s: float) -> float:
        """Return the longest silence of those that repeat their message, or of all if none does."""
        heard_s = [button.heard_s for button in self._buttons.values() if button.repeats]
        if not heard_s:
            heard_s = [max((b.heard_s for b in self._buttons.values()), default=float("-inf"))]
        return wall_s - min(heard_s)

    def _another(self, wall_s: float) -> bool:
        """Return whether a publisher is heard, though not the one that is silent."""
        return any(wall_s - b.heard_s <= self.timeout_s for b in self._buttons.values())

    def _lose_if_silent(self, wall_s: float) -> None:
        """A heartbeat that was lost stops the robot as the button does; one never heard only waits."""
        lasts = self._rearm and self.timeout_s and self._buttons
        if lasts and self._silence_s(wall_s) > self.timeout_s:
            self._disarm()

    def _disarm(self) -> None:
        self._disarmed = self._disarmed or RELEASED

    def _is_expected(self, wall_s: float, publishers: int) -> bool:
        """Return whether a publisher is there whose first message may still be on its way."""
        if self._buttons or not publishers:
            return False
        if self._expected_s is None:
            self._expected_s = wall_s
        return wall_s - self._expected_s < FIRST_STATE_S
