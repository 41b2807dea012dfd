"""Describes the state of the policy for `/diagnostics`."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ttm_policy.control.control_loop import ControlLoop, LoopState
from ttm_policy.control.memory_report import MemoryReport

_LEVELS = {
    LoopState.RUNNING: DiagnosticStatus.OK,
    LoopState.STOPPED: DiagnosticStatus.ERROR,
    LoopState.E_STOP: DiagnosticStatus.ERROR,
}


def unconfigured_status(name: str, level: bytes, message: str) -> DiagnosticStatus:
    """Return the status of a node without a policy. message: what is missing or went wrong."""
    return DiagnosticStatus(name=name, hardware_id="ttm_policy", level=level, message=message)


def policy_status(
    name: str, loop: ControlLoop, memory: MemoryReport, *, active: bool, tick_ms: float
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
        "instruction": memory.instruction,
        "tick": str(memory.tick),
        "tick_ms": f"{tick_ms:.1f}",
        "held_ticks": str(loop.held_ticks),
        "memory_norm": f"{memory.norm:.3f}",
    }
    status.values = [KeyValue(key=key, value=value) for key, value in values.items()]
    return status
