"""Policy nodes as processes that start quickly: children of one process that has imported everything.

Each line on the standard input is a JSON object with the arguments of one `policy_node` and the name
of a fault to build into it. Each line on the standard output is the number of a process, and later
the number and its exit code.

    python policy_processes.py
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttm_policy import policy_node
from ttm_policy.control.control_loop import ControlLoop

CRASH_AT_TICK = 3
SLOW_S = 300.0
"""Longer than any test waits."""
POLL_S = 0.02
PONDER_S = 0.35
END_WITHIN_S = 60.0
"""A busy machine may be slow to stop the robot; the tests themselves see how long an end takes."""
MAIN_RETURNED = 99
"""The exit code if `main` leaves the end of the process to the interpreter, which takes seconds."""


def _crash() -> None:
    """Let the third tick of the policy raise an exception that nobody expects."""
    think = ControlLoop.think

    def broken(loop: ControlLoop, *seen: Any) -> Any:
        if loop.runner.tick + 1 == CRASH_AT_TICK:
            raise RuntimeError("the third tick fails")
        return think(loop, *seen)

    ControlLoop.think = broken  # type: ignore[method-assign]


def _terminate() -> None:
    """Let the policy say at every tick that its task is done."""
    think = ControlLoop.think

    def done(loop: ControlLoop, *seen: Any) -> Any:
        action = think(loop, *seen).copy()
        action[loop.runner.spec.action_slices["terminate"]] = 1.0
        return action

    ControlLoop.think = done  # type: ignore[method-assign]


def _slow() -> None:
    """Let loading the policy take seconds, and show by a file beside that of the parameters when."""
    load, parameters = policy_node.load_policy, Path(sys.argv[-1])

    def slow(*arguments: Any) -> Any:
        parameters.with_suffix(".loading").touch()
        time.sleep(SLOW_S)
        return load(*arguments)

    policy_node.load_policy = slow


def _ponder() -> None:
    """Let the policy think for nearly two ticks."""
    think = ControlLoop.think

    def late(loop: ControlLoop, *seen: Any) -> Any:
        time.sleep(PONDER_S)
        return think(loop, *seen)

    ControlLoop.think = late  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "ponder": _ponder,
    "crash": _crash,
    "terminate": _terminate,
    "slow": _slow,
}


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(2, 1)  # the standard output belongs to the parent
    sys.argv = ["policy_node", *order["arguments"]]
    FAULTS[order["fault"]]()
    policy_node.END_WITHIN_S = END_WITHIN_S
    policy_node.main()
    os._exit(MAIN_RETURNED)


def _tell_ends(running: set[int]) -> None:
    """Write the exit codes of those processes that have ended, and forget them."""
    for pid in sorted(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.remove(pid)
            print(pid, os.waitstatus_to_exitcode(status), flush=True)


def main() -> None:
    """Start a process for each line.

    There is one thread alone: a child would keep for ever the locks that other threads hold when it is
    made.
    """
    running: set[int] = set()
    with open(0, "rb", buffering=0) as orders:
        while True:
            if select.select([orders], [], [], POLL_S)[0]:
                if not (line := orders.readline()):
                    return
                pid = _start(json.loads(line))
                running.add(pid)
                print(pid, flush=True)
            _tell_ends(running)


if __name__ == "__main__":
    main()
