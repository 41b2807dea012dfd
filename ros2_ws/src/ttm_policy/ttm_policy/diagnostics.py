"""Describes the state of the policy for `/diagnostics`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ttm_policy.control_loop import ControlLoop, LoopState, MemoryReport

# How regular the ticks of a policy are, and how long it thinks, over the last minute or so.
#
# It uses no ROS, so that tests can set the time.

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


# From which figures on `/diagnostics` warns, and from which it reports an error.


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


_LEVELS = {
    LoopState.RUNNING: Level.OK,
    LoopState.STOPPED: Level.ERROR,
    LoopState.E_STOP: Level.ERROR,
}


@dataclass(frozen=True)
class PolicyFacts:
    """What is told about a configured policy, beside the state of its loop."""

    active: bool
    memory: MemoryReport
    memory_age_s: float
    """Time since the last memory write; infinity before the first one."""
    network_s: float
    """How long the network took at the last tick."""
    told_delay_s: float
    """The delay that the policy was told at the last tick; 0 for one that is not told."""
    ticks: TickStatistics
    input_ages_s: Mapping[str, float]
    """Input -> age of its newest message, or of its oldest joint."""
    expired: int
    """Commands whose lifespan ended before the next tick."""
    person: str = ""
    """Who drives in the policy's place, or an empty text."""
    person_problem: str = ""
    """Why that person does not move the robot, or an empty text."""
    after_crash: str = ""
    """What the robot will do if the process crashes."""


def plain_status(name: str, level: bytes, message: str) -> DiagnosticStatus:
    """Return a status without values, such as that of a node without a policy."""
    return DiagnosticStatus(name=name, hardware_id="ttm_policy", level=level, message=message)


def policy_status(name: str, loop: ControlLoop, facts: PolicyFacts) -> DiagnosticStatus:
    """Return the status of a configured policy.

    It is OK only while ticks run within the declared thresholds; the message says why it is not.
    """
    level, message = _state(loop, facts)
    status = plain_status(name, bytes([level]), message)
    values = {**_counts(loop, facts), **_times(facts), **_ages(facts.input_ages_s)}
    status.values = [KeyValue(key=key, value=value) for key, value in values.items()]
    return status


def _state(loop: ControlLoop, facts: PolicyFacts) -> tuple[Level, str]:
    problem = f": {loop.problem}" if loop.problem else ""
    if not facts.active:
        return Level.WARN, "inactive" + problem
    if loop.state is not LoopState.RUNNING:
        return _LEVELS.get(loop.state, Level.WARN), loop.state.value + problem
    if facts.person_problem:
        return Level.WARN, f"{facts.person} drives: {facts.person_problem}"
    level, reason = judge(_judged(loop, facts))
    if loop.warning and not reason:
        level, reason = Level.WARN, loop.warning
    return level, f"{loop.state.value}, but {reason}" if reason else loop.state.value


def _judged(loop: ControlLoop, facts: PolicyFacts) -> dict[str, float]:
    oldest_s = max(facts.input_ages_s.values(), default=0.0)
    judged = {"input_age_share": oldest_s / loop.max_age_s}
    if (figures := facts.ticks.figures()) is not None:
        judged["late_share"] = figures.late_share
        judged["tick_p99_share"] = figures.tick_p99_s / facts.ticks.period_s
    return judged


def _counts(loop: ControlLoop, facts: PolicyFacts) -> dict[str, str]:
    hits = ", ".join(f"{name} {count}" for name, count in sorted(facts.ticks.limits_hit.items()))
    return {
        "instruction": facts.memory.instruction,
        "driver": facts.person or "policy",
        "tick": str(facts.memory.tick),
        "held_ticks": str(loop.held_ticks),
        "skipped_ticks": str(facts.ticks.skipped),
        "expired_commands": str(facts.expired),
        "limits_hit": hits or "none",
        "after_crash": facts.after_crash,
        "memory_norm": f"{facts.memory.norm:.3f}",
        "memory_age_s": f"{facts.memory_age_s:.3f}",
    }


def _times(facts: PolicyFacts) -> dict[str, str]:
    times = {
        "tick_ms": f"{facts.network_s * 1e3:.1f}",
        "told_delay_ms": f"{facts.told_delay_s * 1e3:.1f}",
        "wanted_rate_hz": f"{1 / facts.ticks.period_s:g}",
    }
    if (figures := facts.ticks.figures()) is None:
        return times
    milliseconds = {
        "period_p99_ms": figures.period_p99_s,
        "closest_ticks_ms": figures.closest_s,
        "tick_p50_ms": figures.tick_p50_s,
        "tick_p99_ms": figures.tick_p99_s,
        "tick_worst_ms": figures.tick_worst_s,
        "latency_p50_ms": figures.latency_p50_s,
        "latency_p99_ms": figures.latency_p99_s,
    }
    return {
        **times,
        "rate_hz": f"{figures.rate_hz:.2f}",
        "late_share": f"{figures.late_share:.4f}",
        **{name: f"{value * 1e3:.1f}" for name, value in milliseconds.items()},
    }


def _ages(ages_s: Mapping[str, float]) -> dict[str, str]:
    return {f"age of {name} (s)": f"{age:.3f}" for name, age in ages_s.items()}
