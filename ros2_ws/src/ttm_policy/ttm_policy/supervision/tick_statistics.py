"""How regular the ticks of a policy are, and how long it thinks, over the last minute or so.

It uses no ROS, so that tests can set the time.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

LATE = 1.1
"""A tick is late if more than this many periods passed since the one before."""
CLOSE = 0.5
"""Two ticks that are fewer periods apart than this are too close for the memory's sense of time."""
WINDOW = 600
"""The number of ticks that the figures are taken over."""
RECENT = 10
"""The number of ticks from which the time of the next one is guessed."""
FEWEST = 20
"""There are no figures before this many ticks."""


@dataclass(frozen=True)
class TickFigures:
    """Figures of the last ticks. All times are in seconds."""

    rate_hz: float
    """Ticks per second while they ran."""
    late_share: float
    """The share of ticks that were late."""
    period_p99_s: float
    closest_s: float
    """The shortest time between two ticks."""
    tick_p50_s: float
    """From the beginning of a tick until its command was sent."""
    tick_p99_s: float
    tick_worst_s: float
    latency_p50_s: float
    """From the capture of the oldest input until the command was sent."""
    latency_p99_s: float


class TickStatistics:
    """Collects the times of ticks. Its memory does not grow."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.skipped = 0
        """Ticks that were left out because the network was still at work on the one before."""
        self.limits_hit: Counter[str] = Counter()
        """How often the limits changed a part of the action."""
        self._periods: deque[float] = deque(maxlen=WINDOW)
        self._ticks: deque[float] = deque(maxlen=WINDOW)
        self._latencies: deque[float] = deque(maxlen=WINDOW)
        self._began_s: float | None = None
        self._answered_s: float | None = None

    def begin(self, now_s: float) -> None:
        """A tick begins."""
        if self._began_s is not None:
            self._periods.append(now_s - self._began_s)
        self._began_s = now_s

    def answer(self, began_s: float, now_s: float, latency_s: float) -> None:
        """The command of the tick that began at `began_s` was sent."""
        self._ticks.append(now_s - began_s)
        self._latencies.append(latency_s)
        self._answered_s = now_s

    def pause(self) -> None:
        """Ticks stop on purpose. The time until the next one says nothing."""
        self._began_s = None

    def is_late(self, now_s: float) -> bool:
        """Return whether a tick that begins now is late."""
        return self._began_s is not None and now_s - self._began_s > LATE * self.period_s

    def memory_age_s(self, now_s: float) -> float:
        """Return the time since the last memory write; infinity before the first one."""
        return float("inf") if self._answered_s is None else now_s - self._answered_s

    @property
    def recent_tick_s(self) -> float:
        """The median time from the beginning of a tick until its command, of the last few ticks."""
        last = list(self._ticks)[-RECENT:]
        return float(np.median(last)) if last else 0.0

    def figures(self) -> TickFigures | None:
        """Return the figures of the last ticks, or None if there are too few."""
        if len(self._periods) < FEWEST or len(self._ticks) < FEWEST:
            return None
        periods, ticks = np.array(self._periods), np.array(self._ticks)
        latencies = np.array(self._latencies)
        return TickFigures(
            rate_hz=float(1.0 / periods.mean()),
            late_share=float((periods > LATE * self.period_s).mean()),
            period_p99_s=float(np.percentile(periods, 99)),
            closest_s=float(periods.min()),
            tick_p50_s=float(np.median(ticks)),
            tick_p99_s=float(np.percentile(ticks, 99)),
            tick_worst_s=float(ticks.max()),
            latency_p50_s=float(np.median(latencies)),
            latency_p99_s=float(np.percentile(latencies, 99)),
        )
