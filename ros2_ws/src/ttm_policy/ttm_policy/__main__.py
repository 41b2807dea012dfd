"""Runs a program of this package: a node, or what `ttm` starts.

A program is imported here, since PyTorch alone takes seconds to import: Ctrl-C meanwhile ends the process at
once, with exit code 130 and without a traceback.

    python -m ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended."""
PARENT = "TTM_PARENT_PID"
"""Environment variable in which `ttm` names itself to the programs that must not outlive it."""
PR_SET_PDEATHSIG = 1
"""Number of the setting of prctl(2) by which Linux sends a signal when the parent is gone."""


NODES = {
    "policy_node": "policy_node",
    "recorder_node": "recorder_node",
    "sim_node": "sim_node",
    "teleop_node": "teleop_node",
    "web_node": "web.web_node",
}
"""Name of a node -> its module in this package."""


def end_with_parent() -> None:
    """Get SIGTERM when the process that `PARENT` names is gone: no policy drives on without it."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it was gone before
        os.kill(os.getpid(), signal.SIGTERM)


def run(name: str, *arguments: str) -> int:
    """Import a program of this package, call its `main`, and return the exit code; 2 if there is none."""
    module = f"ttm_policy.{NODES.get(name, name)}"
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        program = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and misses a package of others
        print(f"ttm: error: no program {name}; give one of: {', '.join(NODES)}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        return int(program.main(*arguments))
    except KeyboardInterrupt:  # before the program heeds signals itself
        return INTERRUPTED


policy_node = partial(run, "policy_node")
recorder_node = partial(run, "recorder_node")
sim_node = partial(run, "sim_node")
teleop_node = partial(run, "teleop_node")
web_node = partial(run, "web_node")


def main(words: Sequence[str]) -> int:
    """Run the program that the first word names. ROS reads its own arguments from `sys.argv`."""
    end_with_parent()
    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    return run(words[0], *(() if "--ros-args" in words else words[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
