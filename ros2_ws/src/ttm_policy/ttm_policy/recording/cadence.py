"""How evenly the messages of an episode came: what is told of it, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ttm_policy.recording.matching import Tick

OLD_TICKS = 2
"""A message that was made longer than this many ticks before its tick is old."""


@dataclass
class Cadence:
    """Counts, by topic, the ticks for which no new message had come, and the messages that were lost.

    Parameters
    ----------
    observed
        The topics of the observation.
    rate_hz
        The control rate.
    """

    observed: Collection[str]
    rate_hz: float
    ticks: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    """Ticks whose message is that of the tick before."""
    old: Counter[str] = field(default_factory=Counter)
    """Ticks whose message is new, but was made more than `OLD_TICKS` before."""
    lost: Counter[str] = field(default_factory=Counter)
    """Messages that were published and never arrived, by gaps in the publishers' numbers."""
    late: Counter[str] = field(default_factory=Counter)
    """Messages that arrived after their tick had been written."""
    first_ns: int = 0
    last_ns: int = 0
    _stamps_ns: dict[str, int] = field(default_factory=dict)

    def count(self, tick: Tick[Any], begin_ns: int) -> None:
        """Count one tick. begin_ns: when it begins."""
        for topic, stamp_ns in tick.stamps_ns.items():
            if self._stamps_ns.get(topic) == stamp_ns:
                self.repeated[topic] += 1
            elif begin_ns - stamp_ns > OLD_TICKS * 1e9 / self.rate_hz:
                self.old[topic] += 1
            self._stamps_ns[topic] = stamp_ns
        self.first_ns = self.first_ns or tick.captured_ns
        self.last_ns = tick.captured_ns
        self.ticks += 1

    @property
    def fresh(self) -> float:
        """The portion of the ticks that had a new message of the topic that has the fewest."""
        if not self.ticks:
            return 1.0
        bad = (self.repeated[topic] + self.old[topic] for topic in self.observed)
        return 1 - max(bad, default=0) / self.ticks

    @property
    def measured_hz(self) -> float:
        """Ticks a second by the capture times; 0 for fewer than two ticks."""
        span_ns = self.last_ns - self.first_ns
        return 0.0 if span_ns <= 0 else (self.ticks - 1) * 1e9 / span_ns

    def describe(self) -> str:
        """Return the counts in a line."""
        parts = [f"{self.ticks} ticks, {self.measured_hz:.2f} Hz of {self.rate_hz:g}"]
        parts.append(f"{self.fresh:.0%} with new messages of all inputs")
        for what in ("repeated", "old", "lost", "late"):
            if counts := getattr(self, what):
                listed = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
                parts.append(f"{what}: {listed}")
        return "; ".join(parts)

    def refusal(self, least_fresh: float) -> str:
        """Return why the episode is refused, or an empty text.

        least_fresh: the smallest portion of ticks with new messages.
        """
        if self.fresh >= least_fresh:
            return ""
        worst = max(self.observed, key=lambda topic: self.repeated[topic] + self.old[topic])
        bad = self.repeated[worst] + self.old[worst]
        return (
            f"'{worst}' had no new message in {bad} of {self.ticks} ticks, and {least_fresh:.0%} of the "
            "ticks must have one; mend its driver, or lower min_fresh"
        )
