"""Time functions against each other in short alternating blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
"""Seconds of single calls."""

BLOCK = 10
"""Successive calls of one contender before the next one takes its turn."""
DROPPED = 2
"""Calls at the start of each block that are not counted."""


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    blocks: int,
    block: int = BLOCK,
    dropped: int = DROPPED,
) -> dict[str, Times]:
    """Return the seconds of each contender's calls, (blocks * (block - dropped),).

    The contenders take turns in short blocks, so that a machine that becomes slower or faster does
    so for all of them. The first calls of a block are dropped, because the threads of the library
    that ran before keep the cores busy for some milliseconds while they wait for more work.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            taken[name] += [seconds(call) for _ in range(block)][dropped:]
    return {name: np.array(times) for name, times in taken.items()}


def repeated(call: Callable[[], object], count: int) -> Times:
    """Return the seconds of each of `count` successive calls, (count,)."""
    return np.array([seconds(call) for _ in range(count)])


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def median_ms(times: Times) -> float:
    """Return the median of `times` (in seconds) in milliseconds."""
    return float(np.median(times)) * 1e3
