"""What can be wrong with a demo's pictures: JPEGs that do not decode, frames that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.datasets.check.faults import DELETE, Demo, Fault, runs, ticks_text
from ttm.datasets.frames import Frames, decode_jpeg
from ttm.datasets.layout import JPEG
from ttm.policy.spec import CameraSpec

STUCK_REPEATS = 3
"""So many repeats of a frame in a row, while the robot moves, are a stuck camera and not a still scene."""

STILL_RANGE = 0.01
"""A robot whose proprioception stays within this range (10 mm, 0.6 degrees) stands still."""

BLOCK_TICKS = 64
"""Frames read at once: few enough for any memory."""


def frame_faults(demo: Demo, camera: CameraSpec) -> Iterator[Fault]:
    """Faults of one camera's frames.

    A byte-identical frame is one that the camera did not renew. `STUCK_REPEATS` of them in a row are a fault
    if the robot moved meanwhile, or if there is no proprioception that would tell; fewer, or before a robot
    that stands still (simulated cameras have no noise), are a warning.
    """
    stored = demo.group[f"obs/{camera.name}"]
    is_jpeg = stored.attrs.get("encoding") == JPEG
    repeats = np.zeros(len(stored), dtype=np.bool_)
    previous: Frames | None = None
    for tick, frame in enumerate(_ticks(stored)):
        if is_jpeg and (error := _decoding_error(frame, camera)):
            yield demo.fault(f"obs/{camera.name} at tick {tick}: {error}", DELETE, tick)
        repeats[tick] = previous is not None and np.array_equal(frame, previous)
        previous = frame
    yield from _repeat_faults(demo, camera, repeats)


def _ticks(stored: Any) -> Iterator[Frames]:
    for start in range(0, len(stored), BLOCK_TICKS):
        yield from stored[start : start + BLOCK_TICKS]


def _decoding_error(data: Frames, camera: CameraSpec) -> str | None:
    try:
        frame = decode_jpeg(data)
    except (OSError, SyntaxError) as error:  # Pillow's for a broken header
        return f"the JPEG does not decode ({error})"
    shape = (camera.height, camera.width, 3)
    return None if frame.shape == shape else f"the JPEG is {frame.shape}, the spec says {shape}"


def _repeat_faults(
    demo: Demo, camera: CameraSpec, repeats: npt.NDArray[np.bool_]
) -> Iterator[Fault]:
    for first, last in runs(repeats):
        stuck = last - first + 1 >= STUCK_REPEATS and not _stands_still(demo, first - 1, last)
        what = f"obs/{camera.name} repeats the frame before it {ticks_text(first, last)}"
        if stuck:
            yield demo.fault(
                f"{what} while the robot moves", f"{DELETE}; did the camera's driver stall?", first
            )
        else:
            mend = "nothing to do if the scene stood still; otherwise the camera is slower than the control rate"
            yield demo.fault(what, mend, first, is_warning=True)


def _stands_still(demo: Demo, first: int, last: int) -> bool:
    vectors = [
        demo.group[f"obs/{vector.name}"][first : last + 1] for vector in demo.spec.proprioception
    ]
    seen = [
        values for values in vectors if len(values)
    ]  # none where a vector is shorter than the frames
    return bool(seen) and all(
        np.ptp(values, axis=0).max(initial=0.0) <= STILL_RANGE for values in seen
    )
