"""Runs a program of this package: a node, or what `ttm` starts.

A program is imported here, since PyTorch alone takes seconds to import: Ctrl-C meanwhile ends the process at
once, with exit code 130 and without a traceback.

    python -m ttm_policy policy_node --ros-args -p checkpoint:=policy.safetensors
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended."""


def run(module: str, *arguments: str) -> int:
    """Import `ttm_policy.<module>`, call its `main` with the arguments, and return the exit code."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    program = import_module(f"ttm_policy.{module}")
    signal.signal(signal.SIGINT, before)
    try:
        return int(program.main(*arguments))
    except KeyboardInterrupt:  # before the program heeds signals itself
        return INTERRUPTED


policy_node = partial(run, "policy_node")
recorder_node = partial(run, "recorder_node")
sim_node = partial(run, "sim_node")
teleop_node = partial(run, "teleop_node")
web_node = partial(run, "web.web_node")


def main(words: Sequence[str]) -> int:
    """Run the program that the first word names. ROS reads its own arguments from `sys.argv`."""
    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    return run(words[0], *(() if "--ros-args" in words else words[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
