"""Frames as files hold them, in several types and orders, and as RGB frames (n, H, W, 3) uint8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from ttm.datasets.access.rows import read_rows
from ttm.datasets.frames import Frames, decode_image
from ttm.datasets.layout import JPEG

Orientation = Literal["upright", "upside-down", "rotated"]
Colours = Literal["rgb", "bgr"]
Shape = tuple[int, int]

IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n")
"""First bytes of JPEGs and PNGs."""

RANGE_SLACK = 1e-3
"""By so much, in parts of their range, float frames may leave it."""

DEFAULT_RANGE = (0.0, 1.0)


@dataclass(frozen=True)
class StoredCamera:
    """What must be known about the frames of a camera beside their type and shape."""

    orientation: Orientation | None = None
    """upright; upside-down: rows from bottom to top, as OpenGL has them; rotated: by 180 degrees.
    None: what robosuite's `macros_image_convention` of the file says, or else upright."""
    colours: Colours = "rgb"
    """The order of the channels."""
    values: tuple[float, float] = DEFAULT_RANGE
    """Black and white of float frames."""

    def of_file(self, file: Any) -> StoredCamera:
        """Return the same with the orientation that an open file gives."""
        if self.orientation is not None:
            return self
        return replace(self, orientation=file_orientation(file))


def file_orientation(file: Any) -> Orientation:
    """Return the orientation of all frames of an open file that robosuite's LIBERO may have written."""
    convention = file["data"].attrs.get("macros_image_convention")
    is_opengl = convention in ("opengl", b"opengl")
    return "upside-down" if is_opengl else "upright"


def is_encoded(dataset: Any) -> bool:
    """Return whether each row of a dataset is an encoded image, (n,) uint8."""
    return dataset.ndim < 3 and bool(
        dataset.attrs.get("encoding") == JPEG
        or h5py.check_vlen_dtype(dataset.dtype) == np.uint8
        or (dataset.ndim == 2 and dataset.dtype == np.uint8)
    )


def begins_an_image(data: Any) -> bool:
    """Return whether bytes (n,) uint8 begin as a JPEG or a PNG."""
    return np.asarray(data[:8], np.uint8).tobytes().startswith(IMAGE_STARTS)


def frame_shape(dataset: Any) -> Shape | None:
    """Return (height, width) of frames that are not encoded; None if they cannot become RGB frames.

    They can if they are uint8 or float, and (T, H, W, 3), (T, 3, H, W) or, with an alpha channel
    that is not used, (T, H, W, 4) uint8.
    """
    if dataset.ndim != 4 or 0 in dataset.shape[1:]:
        return None
    if not (dataset.dtype == np.uint8 or dataset.dtype.kind == "f"):
        return None
    if dataset.shape[3] == 3 or (dataset.shape[3] == 4 and dataset.dtype == np.uint8):
        return dataset.shape[1], dataset.shape[2]
    return (dataset.shape[2], dataset.shape[3]) if dataset.shape[1] == 3 else None


def read_frames(dataset: Any, start: int, stop: int, stored: StoredCamera) -> list[Frames] | Frames:
    """Return the frames `start` to `stop` - 1 of a dataset as RGB uint8, upright.

    Encoded frames may differ in size and come as a list. Raises `OSError` for an image that does
    not decode, and `ValueError` for values outside of the range.
    """
    rows = read_rows(dataset, start, stop)
    if is_encoded(dataset):
        return [_turned(decode_image(row)[None], stored)[0] for row in rows]
    if rows.dtype == np.uint8 and rows.shape[-1] == 3:
        return _turned(rows, stored)
    return _turned(_as_rgb(rows, stored.values), stored)


def _as_rgb(rows: npt.NDArray[Any], values: tuple[float, float]) -> Frames:
    """Return frames of any kind that `frame_shape` knows as (n, H, W, 3) uint8."""
    if rows.shape[-1] not in (3, 4):
        rows = np.moveaxis(rows, 1, -1)
    rows = rows[..., :3]
    if rows.dtype == np.uint8:
        return np.ascontiguousarray(rows)
    low, high = values
    portion = (rows.astype(np.float64) - low) / (high - low)
    if not ((portion >= -RANGE_SLACK) & (portion <= 1 + RANGE_SLACK)).all():
        raise ValueError(
            f"float frames range from {rows.min():g} to {rows.max():g}, but {low:g} is taken for "
            f"black and {high:g} for white; give `values` of the camera in a --spec file"
        )
    return np.round(portion.clip(0, 1) * 255).astype(np.uint8)


def _turned(frames: Frames, stored: StoredCamera) -> Frames:
    if stored.colours == "bgr":
        frames = frames[..., ::-1]
    if stored.orientation in ("upside-down", "rotated"):
        frames = frames[:, ::-1]
    if stored.orientation == "rotated":
        frames = frames[:, :, ::-1]
    return np.ascontiguousarray(frames)
