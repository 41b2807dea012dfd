"""How evenly the messages of an episode came: what is told of it, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from ttm_policy.recording.matching import Tick

OLD_TICKS = 2
"""A message that was made longer than this many ticks before its tick is old."""


class Cadence:
    """Counts, by topic, the ticks for which no new message had come, and the messages that were lost.

    Parameters
    ----------
    observed
        The topics of the observation.
    rate_hz
        The control rate.
    """

    def __init__(self, observed: Collection[str], rate_hz: float) -> None:
        self.observed, self.rate_hz = observed, rate_hz
        self.lost: Counter[str] = Counter()
        """Messages that were published and never arrived, by gaps in the publishers' numbers."""
        self.late: Counter[str] = Counter()
        """Messages that arrived after their tick had been written."""
        self._ticks: list[tuple[int, list[str], list[str]]] = []
        self._stamps_ns: dict[str, int] = {}

    @property
    def ticks(self) -> int:
        """The number of ticks."""
        return len(self._ticks)

    def count(self, tick: Tick[Any], begin_ns: int) -> None:
        """Count one tick. begin_ns: when it begins."""
        repeated, old = [], []
        for topic, stamp_ns in tick.stamps_ns.items():
            if self._stamps_ns.get(topic) == stamp_ns:
                repeated.append(topic)
            elif begin_ns - stamp_ns > OLD_TICKS * 1e9 / self.rate_hz:
                old.append(topic)
            self._stamps_ns[topic] = stamp_ns
        self._ticks.append((tick.captured_ns, repeated, old))

    def end_at(self, ticks: int) -> None:
        """Forget the ticks after the first `ticks`."""
        del self._ticks[ticks:]

    @property
    def repeated(self) -> Counter[str]:
        """Ticks whose message is that of the tick before."""
        return Counter(topic for _, repeated, _ in self._ticks for topic in repeated)

    @property
    def old(self) -> Counter[str]:
        """Ticks whose message is new, but was made more than `OLD_TICKS` before."""
        return Counter(topic for _, _, old in self._ticks for topic in old)

    @property
    def worst(self) -> tuple[str, int]:
        """The topic with the most ticks without a new message, and how many."""
        bad = self.repeated + self.old
        topic = max(sorted(self.observed), key=lambda each: bad[each])
        return topic, bad[topic]

    @property
    def fresh(self) -> float:
        """The portion of the ticks that had a new message of the topic that has the fewest."""
        return 1 - self.worst[1] / self.ticks if self.ticks else 1.0

    @property
    def measured_hz(self) -> float:
        """Ticks a second by the capture times; 0 for fewer than two ticks."""
        span_ns = self._ticks[-1][0] - self._ticks[0][0] if self._ticks else 0
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
        worst, bad = self.worst
        return (
            f"'{worst}' had no new message in {bad} of {self.ticks} ticks, and {least_fresh:.0%} of the "
            "ticks must have one; mend its driver, or lower min_fresh"
        )
