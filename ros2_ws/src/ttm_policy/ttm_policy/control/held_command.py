"""Keeps a command in force between two ticks, for as long as it may live.

It uses no ROS, so that tests can set the time. Controllers such as MoveIt Servo stop a tenth of a
second after a command; a policy thinks longer than that. Its command is therefore sent again and
again, until the next one comes or its lifespan ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ttm_policy.contract.robot_contract import RAMP

Vector = npt.NDArray[np.float32]


class HeldCommand:
    """The command in force, as a function of time."""

    def __init__(self, smooth: npt.NDArray[np.bool_], *, period_s: float, lifespan_s: float):
        """smooth: (A,), the values that change linearly and not at once, over `RAMP` of `period_s`.

        lifespan_s: that of commands that have none of their own.
        """
        self._smooth, self._ramp_s, self._lifespan_s = smooth, RAMP * period_s, lifespan_s
        self._old: Vector = np.zeros(smooth.shape, np.float32)
        self._new: Vector | None = None
        self._begin_s, self._lives_s = 0.0, lifespan_s

    @property
    def in_force(self) -> bool:
        """Whether a command was begun that was not stopped since. Its lifespan may have ended."""
        return self._new is not None

    def begin(self, command: Vector, now_s: float, lifespan_s: float | None = None) -> None:
        """Let a new command (A,) follow the one before, or standing still if there is none.

        lifespan_s: that of this command; None for the usual one.
        """
        before = self.at(now_s)
        self._old = np.zeros_like(command) if before is None else before
        self._new, self._begin_s = command, now_s
        self._lives_s = self._lifespan_s if lifespan_s is None else lifespan_s

    def at(self, now_s: float) -> Vector | None:
        """Return the command (A,) at a time, or None if there is none or its lifespan has ended.

        A clock that was set back ends the lifespan, too.
        """
        age_s = now_s - self._begin_s
        if self._new is None or not 0 <= age_s <= self._lives_s:
            return None
        share = np.where(self._smooth, min(1.0, age_s / self._ramp_s), 1.0).astype(np.float32)
        # Where the share is 1 the bits of the command stay as they are.
        return np.where(share < 1.0, self._old + share * (self._new - self._old), self._new)

    def stop(self) -> None:
        """Let nothing be in force any more."""
        self._new = None
