"""The stamps of an episode's messages in a bag, by which readers find the same ticks again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TickStamps:
    """When the messages of T ticks are made, in ns."""

    observed_ns: Stamps
    """(T,), the stamps of the observations."""
    commanded_ns: Stamps
    """(T,), those of the commands."""
    first_tick_ns: int
    """When the first tick begins: at the stamp of its observation or later."""
    moved_s: float
    """How far an observation is at most from when it was captured."""


def tick_stamps(captured_ns: Stamps, rate_hz: float) -> TickStamps:
    """Return stamps whose ticks, at the rate, have one observation and one command each.

    captured_ns: (T,), increasing. The stamps of the observations, unless they are so irregular that a tick
    of the rate would see none or two of them; all then follow the first at the rate.
    """
    count = len(captured_ns)
    offsets = np.round(np.arange(count + 1) * (1e9 / rate_hz)).astype(np.int64)
    observed = captured_ns
    begins = offsets + (observed - offsets[:-1]).max()
    if (begins[:-2] >= observed[1:]).any():
        observed, begins = captured_ns[0] + offsets[:-1], captured_ns[0] + offsets
    # A command is made in its tick, and before the next observation.
    ends = np.append(np.minimum(begins[1:-1], observed[1:]), begins[-1])
    return TickStamps(
        observed,
        (begins[:-1] + ends) // 2,
        int(begins[0]),
        float(np.abs(observed - captured_ns).max()) / 1e9,
    )
