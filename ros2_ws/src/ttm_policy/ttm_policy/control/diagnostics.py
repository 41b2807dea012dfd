"""Describes the state of the policy for `/diagnostics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ttm_policy.control.control_loop import ControlLoop, LoopState
from ttm_policy.network.memory_report import MemoryReport
from ttm_policy.supervision.thresholds import Level, judge
from ttm_policy.supervision.tick_statistics import TickStatistics

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
