"""The processor time of a process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np

from ttm.training.bench.watch import watch

SAMPLE_S = 0.2
"""Time between two looks at a process."""

USER, SYSTEM = 11, 12
"""Fields of /proc/PID/stat after the name of the program (proc(5): utime and stime)."""


def processor_s(process: int) -> float | None:
    """Return the seconds for which all threads of a process have run; None where it is unknown."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[USER]) + int(fields[SYSTEM])) / os.sysconf("SC_CLK_TCK")


def watch_processor(
    process: subprocess.Popen[bytes], other: subprocess.Popen[bytes]
) -> list[tuple[float, float]]:
    """Return times (s, on a steady clock) and processor time (s) of a process until one of two ends."""
    return watch(processor_s, process, other, SAMPLE_S)


def used_between(samples: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return the processor time (s) that was used from one time to another, by interpolation."""
    times_s, used_s = np.array(samples).T
    return float(np.diff(np.interp([begin_s, end_s], times_s, used_s))[0])
