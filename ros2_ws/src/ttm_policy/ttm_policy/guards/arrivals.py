"""Watches that the stamps of all inputs go on, in wall time. It uses no ROS."""

from __future__ import annotations

from ttm.policy.errors import StaleObservation


class Arrivals:
    """When the stamp of each input changed last.

    A stamp that is compared with the clock of ROS says nothing if that clock stands still, and a driver
    that sends one message again and again looks fresh until the message is old. A stamp that no longer
    changes gives both away.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, int] = {}
        self._changed_s: dict[str, float] = {}

    def add(self, name: str, stamp_ns: int, wall_s: float) -> None:
        """Take note of a message of an input, received at `wall_s`."""
        if self._stamps.get(name) != stamp_ns:
            self._stamps[name], self._changed_s[name] = stamp_ns, wall_s

    def require_alive(self, wall_s: float, max_age_s: float) -> None:
        """Raise `StaleObservation` if an input has had no new stamp for more than `max_age_s`."""
        for name, changed_s in self._changed_s.items():
            if wall_s - changed_s > max_age_s:
                raise StaleObservation(
                    f"{name} has sent no new stamp for {wall_s - changed_s:.3f} s of wall time; at most "
                    f"{max_age_s} s is accepted: check that sensor, or raise max_age_s"
                )

    def clear(self) -> None:
        """Forget all inputs. Those that send nothing afterwards are missing, and not silent."""
        self._stamps.clear()
        self._changed_s.clear()
