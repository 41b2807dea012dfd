"""Counts the ticks of a policy, judges them, and publishes the state of the policy on `/diagnostics`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

from ttm_policy.commands import CommandMux
from ttm_policy.control_loop import ControlLoop, Inference, LoopState, PendingTick, PolicyTick
from ttm_policy.inputs import Inputs
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


class TickStatistics:
    """Collects the times of ticks, which the caller measures. Its memory does not grow."""

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

    def figures(self) -> dict[str, float]:
        """Return the figures of the last ticks under their keys in diagnostics; none if there are too few."""
        if len(self._periods) < FEWEST or len(self._ticks) < FEWEST:
            return {}
        periods, ticks = np.array(self._periods), np.array(self._ticks)
        tick_p50, tick_p99 = np.percentile(ticks, (50, 99)) * 1e3
        latency_p50, latency_p99 = np.percentile(self._latencies, (50, 99)) * 1e3
        return {
            "rate_hz": float(1.0 / periods.mean()),
            "late_share": float((periods > LATE * self.period_s).mean()),
            "period_p99_ms": float(np.percentile(periods, 99)) * 1e3,
            "closest_ticks_ms": float(periods.min()) * 1e3,
            "tick_p50_ms": float(tick_p50),
            "tick_p99_ms": float(tick_p99),
            "tick_worst_ms": float(ticks.max()) * 1e3,
            "latency_p50_ms": float(latency_p50),
            "latency_p99_ms": float(latency_p99),
        }


class Level(IntEnum):
    """The levels of `diagnostic_msgs/DiagnosticStatus`, in their order."""

    OK = 0
    WARN = 1
    ERROR = 2


THRESHOLDS: Mapping[str, tuple[float, float]] = {
    "late_share": (0.01, 0.2),
    # The network's time and the thread switches, as a share of the period.
    "tick_p99_share": (0.8, 1.5),
    # The age of the oldest input as a share of max_age_s; beyond 1 the robot stands still.
    "input_age_share": (0.7, 1.0),
}
"""The figures that are judged while the policy is running, and above what they are a warning or an error."""


def judge(figures: Mapping[str, float]) -> tuple[Level, str]:
    """Return the worst level of the figures, and the first of those that cause it in words."""
    worst, text = Level.OK, ""
    for name, value in figures.items():
        warn, error = THRESHOLDS[name]
        for level, limit in ((Level.ERROR, error), (Level.WARN, warn)):
            if value > limit and level > worst:
                worst, text = level, f"{name} is {value:.3g}, above {limit:g}"
    return worst, text


class TickRecord:
    """Gathers what `/diagnostics` shows of a configured policy: its ticks, inputs, memory and commands."""

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        inputs: Inputs,
        memory: MemoryTopic,
        commands: CommandMux,
        *,
        after_crash: str = "",
    ):
        """after_crash: what the robot will do if the process crashes, in words."""
        self._node, self._loop, self._inputs = node, loop, inputs
        self._memory, self._commands, self._after_crash = memory, commands, after_crash
        self._network_s = self._delay_s = 0.0
        self.statistics = TickStatistics(loop.runner.spec.control_dt_s)

    def begin(self, tick: PendingTick, now_ns: int) -> float:
        """Count a tick that begins; return how late its command will be, in seconds; 0 in lockstep."""
        self.statistics.begin(tick.wall_s)
        age_s = (now_ns - tick.observation.oldest_ns) * 1e-9
        late = not self._inputs.lockstep
        self._delay_s = age_s + self.statistics.recent_tick_s if late else 0.0
        return self._delay_s

    def finish(self, pending: PendingTick, inference: Inference, tick: PolicyTick) -> None:
        """Count a tick whose command was sent just now."""
        now_ns = self._node.get_clock().now().nanoseconds
        latency_s = (now_ns - pending.observation.oldest_ns) * 1e-9
        self.statistics.answer(pending.wall_s, time.monotonic(), latency_s)
        self._network_s = inference.seconds
        for name, where in self._loop.runner.spec.action_slices.items():
            if not np.array_equal(tick.action[where], tick.command[where]):
                self.statistics.limits_hit[name] += 1

    def status(self, name: str, *, active: bool) -> DiagnosticStatus:
        """Return the status, which is OK only while ticks run within the declared thresholds."""
        ages_s = self._inputs.ages_s(self._node.get_clock().now().nanoseconds)
        figures = self.statistics.figures()
        level, message = self._judge(ages_s, figures, active=active)
        values = {
            **self._counts(),
            **{key: format(value, _FORMATS.get(key, ".1f")) for key, value in figures.items()},
            **{f"age of {name} (s)": f"{age:.3f}" for name, age in ages_s.items()},
        }
        return DiagnosticStatus(
            name=name,
            hardware_id="ttm_policy",
            level=bytes([level]),
            message=message,
            values=[KeyValue(key=key, value=value) for key, value in values.items()],
        )

    def _judge(
        self, ages_s: Mapping[str, float], figures: Mapping[str, float], *, active: bool
    ) -> tuple[Level, str]:
        """Return the level and the message of the status."""
        loop, commands = self._loop, self._commands
        problem = f": {loop.problem}" if loop.problem else ""
        if not active:
            return Level.WARN, "inactive" + problem
        if loop.state is not LoopState.RUNNING:
            stopped = loop.state in (LoopState.STOPPED, LoopState.E_STOP)
            return Level.ERROR if stopped else Level.WARN, loop.state.value + problem
        if commands.problem:
            return Level.WARN, f"{commands.person} drives: {commands.problem}"
        judged = {"input_age_share": max(ages_s.values(), default=0.0) / loop.max_age_s}
        if figures:
            judged["late_share"] = figures["late_share"]
            judged["tick_p99_share"] = figures["tick_p99_ms"] * 1e-3 / self.statistics.period_s
        level, reason = judge(judged)
        if loop.warning and not reason:
            level, reason = Level.WARN, loop.warning
        return level, f"{loop.state.value}, but {reason}" if reason else loop.state.value

    def _counts(self) -> dict[str, str]:
        statistics, memory = self.statistics, self._memory.report
        told_delay_s = min(self._delay_s, self._loop.runner.policy.config.longest_delay_s)
        hits = ", ".join(f"{name} {count}" for name, count in sorted(statistics.limits_hit.items()))
        return {
            "instruction": memory.instruction,
            "driver": self._commands.person or "policy",
            "tick": str(memory.tick),
            "held_ticks": str(self._loop.held_ticks),
            "skipped_ticks": str(statistics.skipped),
            "expired_commands": str(self._commands.publishers.expired),
            "limits_hit": hits or "none",
            "after_crash": self._after_crash,
            "memory_norm": f"{np.linalg.norm(memory.norms):.3f}",
            "memory_age_s": f"{statistics.memory_age_s(time.monotonic()):.3f}",
            "tick_ms": f"{self._network_s * 1e3:.1f}",
            "told_delay_ms": f"{told_delay_s * 1e3:.1f}",
            "wanted_rate_hz": f"{1 / statistics.period_s:g}",
        }
