"""From which figures on `/diagnostics` warns, and from which it reports an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """The levels of `diagnostic_msgs/DiagnosticStatus`, in their order."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class Threshold:
    """Two limits of one figure. It is fine up to `warn`."""

    warn: float
    error: float

    def level(self, value: float) -> Level:
        """Return the level of a value."""
        if value > self.error:
            return Level.ERROR
        return Level.WARN if value > self.warn else Level.OK


THRESHOLDS: Mapping[str, Threshold] = {
    "late_share": Threshold(0.01, 0.2),
    # The network's time and the thread switches, as a share of the period.
    "tick_p99_share": Threshold(0.8, 1.5),
    # The age of the oldest input as a share of max_age_s; beyond 1 the robot stands still.
    "input_age_share": Threshold(0.7, 1.0),
}
"""The figures that are judged while the policy is running."""


def judge(figures: Mapping[str, float]) -> tuple[Level, str]:
    """Return the worst level of the figures, and the first of those that cause it in words."""
    worst, text = Level.OK, ""
    for name, value in figures.items():
        level = THRESHOLDS[name].level(value)
        if level > worst:
            limit = THRESHOLDS[name].error if level is Level.ERROR else THRESHOLDS[name].warn
            worst, text = level, f"{name} is {value:.3g}, above {limit:g}"
    return worst, text
