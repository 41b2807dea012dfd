"""An observation with the times at which it was captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StampedObservation:
    """An observation with its times of capture in nanoseconds.

    `stamp_ns` is that of the oldest camera frame (without cameras, of the oldest input),
    `oldest_ns` that of the oldest of all inputs, and `newest_ns` that of the newest. `executed`, (A,),
    is what the robot reports that it did at the last tick; None if it reports nothing. `frames` has the
    stamps of the cameras whose frames may enter the memory only once.
    """

    values: Mapping[str, npt.NDArray[Any]]
    stamp_ns: int
    oldest_ns: int
    executed: Vector | None = None
    newest_ns: int | None = None
    """None if it is that of the oldest."""
    frames: Mapping[str, int] = field(default_factory=dict)
    see: Callable[[], Mapping[str, npt.NDArray[Any]]] = field(default=dict)
    """Converts and returns the frames of the cameras that `values` lacks. This takes as long as the images
    are large, so that `ControlLoop.think` calls it. Raises `ObservationError` for a frame that must not
    enter the memory."""
