"""Whether the arrays of a demo can be read and fit the spec, by their types and shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py

from ttm.datasets.access.links import find_member
from ttm.datasets.access.storage import outside_fault, storage_fault
from ttm.datasets.layout import JPEG
from ttm.datasets.observations.stored_camera import frame_shape, is_encoded
from ttm.policy.spec import PolicySpec

LEAVE_OUT = "leave this episode out by a mask, or record it again"
"""The remedy where nothing can mend an episode that can be opened."""

TAKE_OUT = "take this episode out of the data set (no mask helps), or record it again"
"""The remedy for one that cannot: a file is opened with all its episodes, whatever the masks say."""

KEEP_APART = "keep episodes of different robots in different folders"

ANY_SHAPE = ("loss_weights", "language_embedding", "rewards", "dones")
"""Optional datasets of a demo that keep it from being read only if they lie in another file."""

Problem = tuple[str, str]
"""What is wrong, and its remedy."""


class Numbers(NamedTuple):
    """The kinds of NumPy types that a dataset may have, in words, and one of these types."""

    kinds: str
    words: str
    example: str


REAL = Numbers("fiub", "real numbers", "float32")
WHOLE = Numbers("iub", "whole numbers", "uint8")


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the datasets that a demo of `spec` must have, with the shape of one tick of each."""
    shapes: dict[str, tuple[int, ...]] = {"actions": (spec.action_size,)}
    shapes |= {f"obs/{camera.name}": (camera.height, camera.width, 3) for camera in spec.cameras}
    return shapes | {f"obs/{vector.name}": (vector.size,) for vector in spec.proprioception}


def structure_problems(
    demo: Any, spec: PolicySpec, *, allow_external: bool = False
) -> Iterator[Problem]:
    """Find what keeps an open demo from being read as one of `spec`, apart from lengths."""
    for key, shape in expected_shapes(spec).items():
        problem = array_problem(demo, key, shape, allow_external=allow_external)
        if problem is not None:
            yield problem
    for key, shape, numbers in (
        ("executed_actions", (spec.action_size,), REAL),
        ("interventions", (), WHOLE),
        ("timestamps", (), REAL),
    ):
        if key in demo and (
            problem := array_problem(demo, key, shape, numbers, allow_external=allow_external)
        ):
            yield problem
    for key in () if allow_external else ANY_SHAPE:
        stored = find_member(demo, key)
        if isinstance(stored, h5py.Dataset) and (fault := outside_fault(stored)):
            yield f"{key}: {fault[0]}", fault[1]


def array_problem(
    demo: Any,
    key: str,
    shape: tuple[int, ...],
    numbers: Numbers = REAL,
    *,
    allow_external: bool = False,
) -> Problem | None:
    """Return what keeps one dataset of a demo from being read, or None.

    shape: that of one tick. Of frames, (H, W, 3), those that can be converted to it pass.
    """
    stored = find_member(demo, key, allow_external=allow_external)
    if stored is None:
        remedy = f"{TAKE_OUT}, or keep it apart from those that have it"
        choose = ", or name what all have with --cameras and --proprioception"
        return f"{key} is missing", remedy + (choose if key.startswith("obs/") else "")
    if not isinstance(stored, h5py.Dataset) or not stored.shape:
        remedy = TAKE_OUT if key.startswith(("actions", "obs/")) else f"take {key} out of the file"
        return f"{key} is not a dataset of one row for each tick", remedy
    fault = storage_fault(stored, whole=len(shape) < 3, allow_external=allow_external)
    if fault is not None:
        return f"{key}: {fault[0]}", fault[1]
    if len(shape) == 3:
        return _camera_problem(key, stored, shape)
    if stored.dtype.kind not in numbers.kinds:
        return f"{key} holds {stored.dtype}, not {numbers.words}", f"write it as {numbers.example}"
    if stored.shape[1:] == shape and stored.ndim:
        return None
    if stored.ndim == 1 and shape == (1,):
        return None
    return f"{key} has shape {stored.shape}, not (T{_rest(shape)})", KEEP_APART


def _camera_problem(key: str, stored: Any, shape: tuple[int, ...]) -> Problem | None:
    encoding = stored.attrs.get("encoding")
    if encoding is not None and not (encoding == JPEG and is_encoded(stored)):
        return f"{key} has encoding {encoding!r} and {stored.dtype} values", (
            "write uint8 frames, or JPEGs with the attribute encoding='jpeg'"
        )
    if is_encoded(stored) and stored.ndim in (1, 2):
        return None
    if stored.ndim == 4 and frame_shape(stored) is None:
        return f"{key} holds {stored.dtype} frames of shape {stored.shape[1:]}", (
            "write them as uint8 RGB, (T, H, W, 3)"
        )
    if frame_shape(stored) == shape[:2]:
        return None
    return f"{key} has shape {stored.shape}, not (T{_rest(shape)})", KEEP_APART


def _rest(shape: tuple[int, ...]) -> str:
    return "".join(f", {size}" for size in shape) or ","
