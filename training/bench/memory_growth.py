"""How much memory a process gains while it runs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import numpy as np

from ttm.training.bench.resident_memory import resident_mb
from ttm.training.bench.watch import watch

SETTLING_S = 20.0
"""The memory of a process is compared from this time on: libraries fill their pools at first."""
SAMPLE_S = 1.0
"""Time between two looks at the memory of the process."""


def watch_memory(
    process: subprocess.Popen[bytes], other: subprocess.Popen[bytes], limit_s: float
) -> list[tuple[float, float]]:
    """Return times (s, on a steady clock) and resident memory (MB) of a process until one of two ends."""
    return watch(resident_mb, process, other, SAMPLE_S, limit_s)


def growth_mb(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return how much memory a process gained since it settled; None if it was not watched so long.

    samples: time in seconds and resident memory in MB, in order of time. Compared are the medians of
    the first and of the last tenth.
    """
    if not samples or samples[-1][0] - samples[0][0] < 2 * SETTLING_S:
        return None
    settled = [mb for at_s, mb in samples if at_s - samples[0][0] >= SETTLING_S]
    tenth = max(1, len(settled) // 10)
    return float(np.median(settled[-tenth:]) - np.median(settled[:tenth]))
