"""Watches the clock of ROS beside a steady clock: that it goes on, and whether it is set. It uses no ROS."""

from __future__ import annotations

from ttm.policy.errors import StaleObservation

STEP_S = 0.1
"""A clock that is further off than this from one look to the next was set, and not slewed."""


class ClockWatch:
    """When the clock of ROS moved last."""

    def __init__(self) -> None:
        self._now_ns: int | None = None
        self._moved_s = 0.0

    def require_running(self, now_ns: int, wall_s: float, max_age_s: float) -> None:
        """Raise `StaleObservation` if the clock has stood still for more than `max_age_s`.

        now_ns: what the clock of ROS shows at the wall time `wall_s`.
        """
        if now_ns != self._now_ns:
            self._now_ns, self._moved_s = now_ns, wall_s
        if wall_s - self._moved_s > max_age_s:
            raise StaleObservation(
                f"the clock of ROS has stood still for {wall_s - self._moved_s:.3f} s of wall time; at "
                f"most {max_age_s} s is accepted: check who publishes /clock, or raise max_age_s"
            )


class ClockSteps:
    """Finds out when the system clock is set."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def step_s(self, now_ns: int, before_s: float, after_s: float) -> float:
        """Return how far the clock was set ahead since the last call, in seconds; 0 if it was not.

        It is below 0 for a clock that was set back. now_ns: what it showed between the times `before_s` and
        `after_s` of the steady clock. If they are far apart, nothing can be said, and the next call counts.
        """
        if after_s - before_s > STEP_S / 4:
            return 0.0
        last_s, self._ahead_s = self._ahead_s, now_ns * 1e-9 - after_s
        step_s = 0.0 if last_s is None else self._ahead_s - last_s
        return step_s if abs(step_s) > STEP_S else 0.0
