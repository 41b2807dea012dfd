"""Whether the emergency stop lets the robot move. It uses no ROS, so that tests can set the time."""

from __future__ import annotations

FIRST_STATE_S = 5.0
"""How long the robot waits for the first message of a publisher of the emergency stop.

A process that is started while the button is pressed does not move before it has heard so.
"""
RELEASED = "it was released; call the service rearm to go on"
"""What holds the robot after a release."""


class EStop:
    """The state of the emergency stop, from the messages of its topic.

    rearm: whether the robot waits for `rearm` after the button was released. timeout_s: the longest
    silence of the topic, after which the robot stops as if the button were pressed; 0 to accept any.
    All times are those of a steady clock, in seconds.
    """

    def __init__(self, *, rearm: bool, timeout_s: float):
        self._rearm, self._timeout_s = rearm, timeout_s
        self.pressed = False
        self._disarmed = False
        self._heard_s: float | None = None
        self._expected_s: float | None = None

    def heard(self, pressed: bool, wall_s: float) -> None:
        """Take note of a message: the newest one counts."""
        self._lose_if_silent(wall_s)
        self.pressed, self._heard_s = pressed, wall_s
        self._disarmed |= pressed and self._rearm

    def arm(self) -> bool:
        """Let the robot move again after a release. Return False while the button is pressed."""
        if not self.pressed:
            self._disarmed = False
        return not self.pressed

    def problem(self, wall_s: float, publishers: int) -> str:
        """Return why the robot must not move, or an empty text. publishers: those of the topic."""
        self._lose_if_silent(wall_s)
        if self.pressed:
            return "it is pressed"
        if self._timeout_s and self._silence_s(wall_s) > self._timeout_s:
            return (
                f"its topic is silent; it must send a message every {self._timeout_s:g} s "
                "(e_stop_timeout_s)"
            )
        if self._disarmed:
            return RELEASED
        return "its state is not known yet" if self._is_expected(wall_s, publishers) else ""

    def _silence_s(self, wall_s: float) -> float:
        return float("inf") if self._heard_s is None else wall_s - self._heard_s

    def _lose_if_silent(self, wall_s: float) -> None:
        """A heartbeat that was lost stops the robot as the button does; one never heard only waits."""
        if self._timeout_s and self._heard_s is not None:
            self._disarmed |= self._rearm and self._silence_s(wall_s) > self._timeout_s

    def _is_expected(self, wall_s: float, publishers: int) -> bool:
        """Return whether a publisher is there whose first message may still be on its way."""
        if self._heard_s is not None or not publishers:
            return False
        if self._expected_s is None:
            self._expected_s = wall_s
        return wall_s - self._expected_s < FIRST_STATE_S
