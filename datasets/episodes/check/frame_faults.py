"""Faults of the camera frames of a demo: JPEGs that do not decode, frames that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.access.rows import read_rows
from ttm.datasets.access.unreadable import one_line
from ttm.datasets.check.fault import Demo, Fault, runs, ticks_text
from ttm.datasets.frames import Frames
from ttm.datasets.observations.stored_camera import StoredCamera, is_encoded, read_frames
from ttm.datasets.observations.structure import LEAVE_OUT
from ttm.policy.spec import CameraSpec

STUCK_REPEATS = 3
"""This many repeats of a frame in a row, while the robot moves, mean that the camera is stuck."""

STILL_RANGE = 0.01
"""The robot stands still while its proprioception varies by at most this (10 mm, 0.6 degrees)."""

BLOCK_TICKS = 64
"""The number of frames that are read at once, which bounds the memory needed."""


def frame_faults(demo: Demo, camera: CameraSpec) -> Iterator[Fault]:
    """Find faults of the frames of one camera.

    A frame that is byte-identical to the one before was not renewed by the camera. `STUCK_REPEATS`
    of them in a row are a fault if the robot moved meanwhile, or if there is no proprioception that
    would show it. Fewer repeats, or repeats while the robot stands still, are a warning, because
    simulated cameras have no noise.
    """
    stored = demo.group[f"obs/{camera.name}"]
    repeats = np.zeros(len(stored), dtype=np.bool_)
    previous: Frames | None = None
    for tick, frame in enumerate(_ticks(stored)):
        repeats[tick] = previous is not None and np.array_equal(frame, previous)
        previous = frame
    yield from _conversion_faults(demo, camera, stored)
    yield from _repeat_faults(demo, camera, repeats)


def _ticks(stored: Any) -> Iterator[Frames]:
    for start in range(0, len(stored), BLOCK_TICKS):
        yield from read_rows(stored, start, start + BLOCK_TICKS)


def _conversion_faults(demo: Demo, camera: CameraSpec, stored: Any) -> Iterator[Fault]:
    """Find frames that do not decode, have another size, or values out of their range."""
    if stored.dtype == np.uint8 and not is_encoded(stored):
        return  # such frames are taken as they are, and their shape is that of the dataset
    how = demo.cameras.get(camera.name, StoredCamera())
    shape = (camera.height, camera.width, 3)
    for tick in range(len(stored)):
        try:
            found = read_frames(stored, tick, tick + 1, how)[0].shape
        except (OSError, ValueError) as error:
            what = f"obs/{camera.name} at tick {tick}: {one_line(error)}"
            yield demo.fault(what, LEAVE_OUT, tick)
            continue
        if found != shape:
            what = f"obs/{camera.name} at tick {tick} has shape {found}, others {shape}"
            yield demo.fault(what, LEAVE_OUT, tick)


def _repeat_faults(
    demo: Demo, camera: CameraSpec, repeats: npt.NDArray[np.bool_]
) -> Iterator[Fault]:
    for first, last in runs(repeats):
        stuck = last - first + 1 >= STUCK_REPEATS and not _stands_still(demo, first - 1, last)
        what = f"obs/{camera.name} repeats the frame before it {ticks_text(first, last)}"
        if stuck:
            yield demo.fault(
                f"{what} while the robot moves",
                f"{LEAVE_OUT}; did the camera's driver stall?",
                first,
            )
        else:
            remedy = (
                "nothing to do if the scene stood still; "
                "otherwise the camera is slower than the control rate"
            )
            yield demo.fault(what, remedy, first, is_warning=True)


def _stands_still(demo: Demo, first: int, last: int) -> bool:
    vectors = [
        np.asarray(demo.group[f"obs/{vector.name}"][first : last + 1], np.float64)
        for vector in demo.spec.proprioception
    ]
    # A vector that is shorter than the frames has no values here.
    recorded = [values for values in vectors if len(values)]
    return bool(recorded) and all(
        np.ptp(values, axis=0).max(initial=0.0) <= STILL_RANGE for values in recorded
    )
