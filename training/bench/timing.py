"""Timing of things that disturb each other, and the process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

Times = npt.NDArray[np.float64]
"""Seconds of single calls."""

BLOCK, DROPPED = 10, 2
"""Calls in a row of one contender, and how many of them at the start do not count."""


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    blocks: int,
    block: int = BLOCK,
    dropped: int = DROPPED,
) -> dict[str, Times]:
    """Seconds of each contender's calls, (blocks * (block - dropped),).

    In short blocks by turns, so that a machine that gets slower or faster does so for all. The first calls of a block
    are dropped: the threads of the library that ran before go on waiting for work for some milliseconds, on the cores.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            taken[name] += [seconds(call) for _ in range(block)][dropped:]
    return {name: np.array(times) for name, times in taken.items()}


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """PyTorch's threads, in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def repeated(call: Callable[[], object], count: int) -> Times:
    """Seconds of each of `count` calls."""
    return np.array([seconds(call) for _ in range(count)])


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def resident_mb() -> float | None:
    """Megabytes of this process in memory (VmRSS); None where the system does not say."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1e3
