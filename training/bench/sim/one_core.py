"""Running on a single core, so that nothing is spread over several without being noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_core() -> Iterator[bool]:
    """Keep this thread, and those that it starts, on one core; yield whether the system can do that.

    Renderers without a graphics card use a thread for each core. They start them when the first
    frame is rendered.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)
