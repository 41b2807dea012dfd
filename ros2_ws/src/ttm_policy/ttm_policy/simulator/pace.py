"""Keeps a simulation in step with the wall clock."""

from __future__ import annotations

LEAST_WAIT = 0.25
"""The portion of a period that is always left for messages."""


class Pace:
    """Gives the ends of control periods on the wall clock, in seconds.

    The periods follow one another without gaps, so that what simulating and rendering take comes off
    the waiting time. A simulation that takes longer falls behind: in each period at least a quarter is
    left for the commands to arrive, and what is lost is not made up for.
    """

    def __init__(self, period_s: float):
        """period_s: the wall time of one control tick."""
        self._period_s = period_s
        self._began_s: float | None = None
        self._end_s = 0.0
        self._ticks = 0

    def next_end(self, now_s: float) -> float:
        """Begin the next period, and return when it ends. now_s: the wall time."""
        if self._began_s is None:
            self._began_s = self._end_s = now_s
        self._end_s += self._period_s
        self._ticks += 1
        self._end_s = max(self._end_s, now_s + LEAST_WAIT * self._period_s)
        return self._end_s

    def achieved(self) -> float:
        """Return the speed of the periods since the last restart, 1.0 if none was late."""
        if self._began_s is None:
            return 1.0
        return self._ticks * self._period_s / (self._end_s - self._began_s)

    def restart(self) -> None:
        """Begin anew with the next period."""
        self._began_s, self._ticks = None, 0
