"""Keeps an encoder from taking the processor from everything else on the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

THREADS = Path("/proc/self/task")
"""Holds a folder for each thread of this process, on Linux."""


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Give this thread and those that start meanwhile the priority that this thread has now.

    SVT-AV1 4.1 moves the thread that opens it, and its own, to the highest real-time priority where it
    may, as root may, and leaves them there: they would then starve all other processes of the
    machine, among them the nodes of a robot.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters, older = os.sched_getscheduler(0), os.sched_getparam(0), _threads()
    try:
        yield
    finally:
        for thread in (0, *(_threads() - older)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                if os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR):
                    os.sched_setscheduler(thread, policy, parameters)


def _threads() -> set[int]:
    """Return the threads of this process; none where the system does not tell."""
    return {int(each.name) for each in THREADS.iterdir()} if THREADS.exists() else set()
