"""Looks at a process again and again while it runs."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable


def watch(
    look: Callable[[int], float | None],
    process: subprocess.Popen[bytes],
    other: subprocess.Popen[bytes],
    every_s: float,
    limit_s: float = math.inf,
) -> list[tuple[float, float]]:
    """Return times (s, on a steady clock) and what `look` found, until one of two processes ends.

    look: takes the number of `process`; None is left out. every_s: the time between two looks.
    """
    samples: list[tuple[float, float]] = []
    until_s = time.monotonic() + limit_s
    while other.poll() is None and process.poll() is None and time.monotonic() < until_s:
        found = look(process.pid)
        if found is not None:
            samples.append((time.monotonic(), found))
        time.sleep(every_s)
    return samples
