"""Describes the state of the policy for `/diagnostics`."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ttm_policy.control.control_loop import ControlLoop, LoopState

_LEVELS = {
    LoopState.RUNNING: DiagnosticStatus.OK,
    LoopState.STOPPED: DiagnosticStatus.ERROR,
    LoopState.E_STOP: DiagnosticStatus.ERROR,
}


def unconfigured_status(name: str, problem: str) -> DiagnosticStatus:
    """Return the status of a node without a policy. problem: why configuring failed, or empty."""
    level = DiagnosticStatus.ERROR if problem else DiagnosticStatus.WARN
    return DiagnosticStatus(
        name=name, hardware_id="ttm_policy", level=level, message=problem or "not configured"
    )


def policy_status(
    name: str, loop: ControlLoop, *, active: bool, tick_ms: float
) -> DiagnosticStatus:
    """Return the status of a configured policy.

    It is OK only while ticks run; the message says why they do not.
    """
    problem = f": {loop.problem}" if loop.problem else ""
    status = DiagnosticStatus(name=name, hardware_id="ttm_policy", level=DiagnosticStatus.WARN)
    if active:
        status.level = _LEVELS.get(loop.state, DiagnosticStatus.WARN)
    status.message = (loop.state.value if active else "inactive") + problem
    values = {
        "instruction": loop.runner.instruction or "",
        "tick": str(loop.runner.tick),
        "tick_ms": f"{tick_ms:.1f}",
        "held_ticks": str(loop.held_ticks),
        "memory_norm": f"{float(sum(loop.runner.memory_norms**2)) ** 0.5:.3f}",
    }
    status.values = [KeyValue(key=key, value=value) for key, value in values.items()]
    return status
