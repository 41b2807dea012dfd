"""Faults that are built into a `policy_node` before it starts, in its own process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttm_policy import policy_node
from ttm_policy.control_loop import ControlLoop

CRASH_AT_TICK = 3
SLOW_S = 300.0
"""Longer than any test waits."""
PONDER_S = 0.35
HELD_S = 5.0
"""How long a call holds the thread of the node: longer than a busy machine needs for an emergency stop."""
LOADING = "loading"
"""The file beside that of the parameters which shows that a slow policy is being loaded, or that the node
is held."""


def _crash() -> None:
    """Let the third tick of the policy raise an exception that nobody expects."""
    infer = ControlLoop.infer

    def broken(loop: ControlLoop, *seen: Any) -> Any:
        if loop.runner.tick + 1 == CRASH_AT_TICK:
            raise RuntimeError("the third tick fails")
        return infer(loop, *seen)

    ControlLoop.infer = broken  # type: ignore[method-assign]


def _terminate() -> None:
    """Let the policy say at every tick that its task is done."""
    infer = ControlLoop.infer

    def done(loop: ControlLoop, *seen: Any) -> Any:
        inference = infer(loop, *seen)
        action = inference.action.copy()
        action[loop.runner.spec.action_slices["terminate"]] = 1.0
        return replace(inference, action=action)

    ControlLoop.infer = done  # type: ignore[method-assign]


def _slow() -> None:
    """Let loading the policy take minutes, and show by a file when it has begun."""
    load, parameters = policy_node.load_policy, Path(sys.argv[-1])

    def slow(*arguments: Any) -> Any:
        parameters.with_name(LOADING).touch()
        time.sleep(SLOW_S)
        return load(*arguments)

    policy_node.load_policy = slow


def _ponder() -> None:
    """Let the policy think for nearly two ticks."""
    infer = ControlLoop.infer

    def late(loop: ControlLoop, *seen: Any) -> Any:
        time.sleep(PONDER_S)
        return infer(loop, *seen)

    ControlLoop.infer = late  # type: ignore[method-assign]


def _held() -> None:
    """Let a call that sets a parameter hold the thread of the node for seconds."""
    read, parameters = policy_node.read_parameters, Path(sys.argv[-1])

    def slow(node: Any, kind: Any) -> Any:
        if parameters.with_name(LOADING).exists():
            parameters.with_name(LOADING).write_text("held")
            time.sleep(HELD_S)
        return read(node, kind)

    policy_node.read_parameters = slow


FAULTS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "ponder": _ponder,
    "crash": _crash,
    "terminate": _terminate,
    "slow": _slow,
    "held": _held,
}
