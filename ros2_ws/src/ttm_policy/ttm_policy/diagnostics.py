"""Counts the ticks of a policy, judges them, and publishes the state of the policy on `/diagnostics`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

from ttm_policy.commands import CommandMux
from ttm_policy.control_loop import ControlLoop, Inference, LoopState, PendingTick
from ttm_policy.inputs import Inputs, Vector
from ttm_policy.memory import MemoryTopic

LATE = 1.1
"""A tick is late if more than this many periods passed since the one before."""
WINDOW = 600
"""The number of ticks that the figures are taken over."""
RECENT = 10
"""The number of ticks from which the time of the next one is guessed."""
FEWEST = 20
"""There are no figures before this many ticks."""
_FORMATS = {"rate_hz": ".2f", "late_share": ".4f"}
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class TickStatistics:
    """Collects the times of ticks, which the caller measures. Its memory does not grow."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.skipped = 0
        """Ticks that were left out because the network was still at work on the one before."""
        self.limits_hit: Counter[str] = Counter()
        """How often the limits changed a part of the action."""
        self._periods_s: deque[float] = deque(maxlen=WINDOW)
        self._ticks_s: deque[float] = deque(maxlen=WINDOW)
        self._latencies_s: deque[float] = deque(maxlen=WINDOW)
        self._began_s: float | None = None
        self._answered_s: float | None = None

    def begin(self, now_s: float) -> None:
        """A tick begins."""
        if self._began_s is not None:
            self._periods_s.append(now_s - self._began_s)
        self._began_s = now_s

    def answer(self, began_s: float, now_s: float, latency_s: float) -> None:
        """The command of the tick that began at `began_s` was sent."""
        self._ticks_s.append(now_s - began_s)
        self._latencies_s.append(latency_s)
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
        return float(np.median(list(self._ticks_s)[-RECENT:])) if self._ticks_s else 0.0

    def figures(self) -> dict[str, float]:
        """Return the figures of the last ticks under their keys in diagnostics; none if there are too few."""
        if min(len(self._periods_s), len(self._ticks_s)) < FEWEST:
            return {}
        periods_s = np.array(self._periods_s)
        figures: dict[str, Any] = {
            "rate_hz": 1.0 / periods_s.mean(),
            "late_share": (periods_s > LATE * self.period_s).mean(),
        }
        for name, times_s, percent in (
            ("period_p99_ms", periods_s, 99),
            ("closest_ticks_ms", periods_s, 0),
            ("tick_p50_ms", self._ticks_s, 50),
            ("tick_p99_ms", self._ticks_s, 99),
            ("tick_worst_ms", self._ticks_s, 100),
            ("latency_p50_ms", self._latencies_s, 50),
            ("latency_p99_ms", self._latencies_s, 99),
        ):
            figures[name] = np.percentile(times_s, percent) * 1e3
        return {name: float(value) for name, value in figures.items()}


THRESHOLDS: Mapping[str, tuple[float, float]] = {
    "late_share": (0.01, 0.2),
    # The network's time and the thread switches, as a share of the period.
    "tick_p99_share": (0.8, 1.5),
    # The age of the oldest input as a share of max_age_s; beyond 1 the robot stands still.
    "input_age_share": (0.7, 1.0),
}
"""The figures that are judged while the policy is running, and above what they are a warning or an error."""


def judge(figures: Mapping[str, float]) -> tuple[bytes, str]:
    """Return the worst level of the figures, and the first of those that cause it in words."""
    worst, text = OK, ""
    for name, value in figures.items():
        warn, error = THRESHOLDS[name]
        for level, limit in ((ERROR, error), (WARN, warn)):
            if value > limit and level > worst:
                worst, text = level, f"{name} is {value:.3g}, above {limit:g}"
    return worst, text


@dataclass
class TickRecord:
    """Gathers what `/diagnostics` shows of a configured policy: its ticks, inputs, memory and commands."""

    node: Node
    loop: ControlLoop
    inputs: Inputs
    memory: MemoryTopic
    commands: CommandMux
    after_crash: str = ""
    """What the robot will do if the process crashes, in words."""
    _network_s = _delay_s = 0.0

    def __post_init__(self) -> None:
        self.statistics = TickStatistics(self.loop.runner.spec.control_dt_s)

    def begin(self, tick: PendingTick, now_ns: int) -> float:
        """Count a tick that begins; return how late its command will be, in seconds; 0 in lockstep."""
        self.statistics.begin(tick.wall_s)
        age_s = (now_ns - tick.observation.oldest_ns) * 1e-9
        late = not self.inputs.lockstep
        self._delay_s = age_s + self.statistics.recent_tick_s if late else 0.0
        return self._delay_s

    def finish(self, pending: PendingTick, inference: Inference, limited: Vector) -> None:
        """Count a tick whose command was sent just now. limited: the action (A,) within the limits."""
        now_ns = self.node.get_clock().now().nanoseconds
        latency_s = (now_ns - pending.observation.oldest_ns) * 1e-9
        self.statistics.answer(pending.wall_s, time.monotonic(), latency_s)
        self._network_s = inference.seconds
        for name, where in self.loop.runner.spec.action_slices.items():
            if not np.array_equal(inference.action[where], limited[where]):
                self.statistics.limits_hit[name] += 1

    def status(self, *, active: bool) -> DiagnosticStatus:
        """Return the status, which is OK only while ticks run within the declared thresholds."""
        ages_s = self.inputs.ages_s(self.node.get_clock().now().nanoseconds)
        figures = self.statistics.figures()
        level, message = self._judge(ages_s, figures, active=active)
        values = {
            **self._counts(),
            **{key: format(value, _FORMATS.get(key, ".1f")) for key, value in figures.items()},
            **{f"age of {name} (s)": f"{age:.3f}" for name, age in ages_s.items()},
        }
        return DiagnosticStatus(
            hardware_id="ttm_policy",
            level=level,
            message=message,
            values=[KeyValue(key=key, value=value) for key, value in values.items()],
        )

    def _judge(
        self, ages_s: Mapping[str, float], figures: Mapping[str, float], *, active: bool
    ) -> tuple[bytes, str]:
        """Return the level and the message of the status."""
        loop, commands = self.loop, self.commands
        problem = f": {loop.problem}" if loop.problem else ""
        if not active:
            return WARN, "inactive" + problem
        if loop.state is not LoopState.RUNNING:
            stopped = loop.state in (LoopState.STOPPED, LoopState.E_STOP)
            return ERROR if stopped else WARN, loop.state.value + problem
        if commands.problem:
            return WARN, f"{commands.person} drives: {commands.problem}"
        judged = {"input_age_share": max(ages_s.values(), default=0.0) / loop.max_age_s}
        if figures:
            judged["late_share"] = figures["late_share"]
            judged["tick_p99_share"] = figures["tick_p99_ms"] * 1e-3 / self.statistics.period_s
        level, reason = judge(judged)
        if loop.warning and not reason:
            level, reason = WARN, loop.warning
        return level, f"{loop.state.value}, but {reason}" if reason else loop.state.value

    def _counts(self) -> dict[str, str]:
        statistics, memory = self.statistics, self.memory.report
        told_delay_s = min(self._delay_s, self.loop.runner.longest_delay_s)
        hits = ", ".join(f"{name} {count}" for name, count in sorted(statistics.limits_hit.items()))
        return {
            "instruction": memory.instruction,
            "driver": self.commands.person or "policy",
            "tick": str(memory.tick),
            "held_ticks": str(self.loop.held_ticks),
            "skipped_ticks": str(statistics.skipped),
            "expired_commands": str(self.commands.publishers.expired),
            "limits_hit": hits or "none",
            "after_crash": self.after_crash,
            "memory_norm": f"{np.linalg.norm(memory.norms):.3f}",
            "memory_age_s": f"{statistics.memory_age_s(time.monotonic()):.3f}",
            "tick_ms": f"{self._network_s * 1e3:.1f}",
            "told_delay_ms": f"{told_delay_s * 1e3:.1f}",
            "wanted_rate_hz": f"{1 / statistics.period_s:g}",
        }
