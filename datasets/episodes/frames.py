"""Camera frames: JPEG encoding and decoding, and resizing."""

from __future__ import annotations

import io
import struct

import numpy as np
import numpy.typing as npt
from PIL import Image

Frames = npt.NDArray[np.uint8]

PILLOW_ERRORS = (ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for damaged images beside `OSError`."""


def encode_jpeg(frame: Frames, quality: int) -> Frames:
    """Return an RGB frame (H, W, 3) uint8 as a JPEG, (n,) uint8.

    Colour keeps the full resolution (4:4:4).
    """
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality, subsampling=0)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def decode_jpeg(data: Frames) -> Frames:
    """Return the frame (H, W, 3) uint8 RGB of a JPEG (n,) uint8, which zeros may follow.

    Raises `OSError` if it is damaged, cut short or so large that it must be an attack.
    """
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, *PILLOW_ERRORS) as error:
        raise OSError(f"the image does not decode ({error})") from error


def resize_frame(frame: Frames, height: int, width: int) -> Frames:
    """Return a frame (H, W, 3) uint8 as (height, width, 3) uint8; the aspect ratio may change.

    Pixels are averaged over areas if neither side grows, and interpolated bilinearly otherwise.
    """
    if frame.shape[:2] == (height, width):
        return frame
    shrinks = height <= frame.shape[0] and width <= frame.shape[1]
    resample = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(frame).resize((width, height), resample))
