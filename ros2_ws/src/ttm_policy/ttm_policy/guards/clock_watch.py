"""Watches that the clock of ROS goes on, in wall time. It uses no ROS."""

from __future__ import annotations

from ttm.policy.errors import StaleObservation


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
