"""Camera frames: JPEG encoding and decoding, and resizing."""

from __future__ import annotations

import io
import math
import struct

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

Frames = npt.NDArray[np.uint8]

PILLOW_ERRORS = (ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for damaged images beside `OSError`."""

DIRECT = ("YCbCr", "RGB", "Gray")
"""Colours of JPEGs that libjpeg-turbo decodes to RGB without a conversion of its own."""


def encode_jpeg(frame: Frames, quality: int) -> Frames:
    """Return an RGB frame (H, W, 3) uint8 as a JPEG, (n,) uint8.

    Colour keeps the full resolution (4:4:4).
    """
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality, subsampling=0)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def decode_jpeg(data: Frames) -> Frames:
    """Return the frame (H, W, 3) uint8 RGB of a JPEG or PNG (n,) uint8, which zeros may follow.

    JPEGs are decoded by libjpeg-turbo without a detour over Pillow's images; what it refuses is left
    to Pillow, which gives the same values. Raises `OSError` if the image is damaged, cut short or so
    large that it must be an attack.
    """
    encoded = data.tobytes()
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
        if colours in DIRECT and height * width <= (Image.MAX_IMAGE_PIXELS or math.inf):
            decoded: Frames = simplejpeg.decode_jpeg(encoded)
            return decoded
    except ValueError:
        pass  # no JPEG, or a damaged one, about which Pillow says more
    return _decoded_by_pillow(encoded)


def _decoded_by_pillow(encoded: bytes) -> Frames:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, *PILLOW_ERRORS) as error:
        raise OSError(f"the image does not decode ({error})") from error


def whole_factors(frame: Frames, height: int, width: int) -> bool:
    """Return whether both sides of a frame (H, W, 3) shrink by whole factors, or stay."""
    return not (frame.shape[0] % height or frame.shape[1] % width)


def resize_frame(frame: Frames, height: int, width: int) -> Frames:
    """Return a frame (H, W, 3) uint8 as (height, width, 3) uint8; the aspect ratio may change.

    Pixels are averaged over areas if both sides shrink by whole factors. Otherwise they are
    interpolated linearly, where a side shrinks over as many pixels as become one (antialiasing).
    """
    if frame.shape[:2] == (height, width):
        return frame
    whole = whole_factors(frame, height, width)
    resample = Image.Resampling.BOX if whole else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(frame).resize((width, height), resample))
