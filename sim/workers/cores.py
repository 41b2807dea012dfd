"""The number of processor cores."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use; a container may have fewer than its machine."""
    return len(os.sched_getaffinity(0))
