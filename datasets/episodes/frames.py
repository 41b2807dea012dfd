"""Camera frames: JPEG encoding and decoding, and resizing."""

from __future__ import annotations

import io
import struct

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

Frames = npt.NDArray[np.uint8]

MAX_PIXELS = 2**25
"""Pixels of the largest image that is decoded, 8K; a header that claims more is damaged or an attack."""

MAX_SCANS = 100
"""Passes over the pixels of a progressive JPEG; encoders make about 10, and each takes time."""

JPEG_START, PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
"""The chunks of a PNG that its pixels need. Others hold text and profiles, which may unpack to any size."""

DIRECT = ("YCbCr", "RGB", "Gray")
"""Colours of JPEGs that libjpeg-turbo decodes to RGB without a conversion of its own."""


def encode_jpeg(frame: Frames, quality: int) -> Frames:
    """Return an RGB frame (H, W, 3) uint8 as a JPEG, (n,) uint8.

    Colour keeps the full resolution (4:4:4).
    """
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality, subsampling=0)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def image_size(data: bytes | Frames) -> tuple[int, int]:
    """Return the height and width that the header of a JPEG or PNG declares; no pixel is decoded.

    data: bytes, or (n,) uint8. Raises `OSError` if it is neither, if the header is damaged, if it
    declares more than `MAX_PIXELS`, or if the image is a grey PNG of 16 bits, which holds depth.
    """
    encoded = data if isinstance(data, bytes) else data.tobytes()
    if encoded.startswith(PNG_START):
        height, width = _png_size(encoded)
    elif encoded.startswith(JPEG_START):
        height, width = _jpeg_size(encoded)
    else:
        raise OSError("the image does not decode (it is neither a JPEG nor a PNG)")
    if not 0 < height * width <= MAX_PIXELS:
        raise OSError(
            f"the image does not decode (its header declares {width}x{height} pixels, and at most "
            f"{MAX_PIXELS} are decoded)"
        )
    return height, width


def decode_image(data: bytes | Frames, size: tuple[int, int] | None = None) -> Frames:
    """Return the frame (H, W, 3) uint8 RGB of a JPEG or PNG, which zeros may follow.

    The bytes may be a stranger's: the header is judged before anything is decoded, no other format is
    tried, and what a PNG holds beside its pixels is not unpacked. JPEGs are decoded by libjpeg-turbo
    without a detour over Pillow's images; what it refuses is left to Pillow, which gives the same values.

    data: bytes, or (n,) uint8. size: the height and width that the header must declare.
    Raises `OSError` if the image is damaged, cut short, too large or of another size, and as `image_size`.
    """
    encoded = data if isinstance(data, bytes) else data.tobytes()
    declared = image_size(encoded)
    if size is not None and declared != size:
        raise OSError(
            f"the image has {declared[1]}x{declared[0]} pixels where {size[1]}x{size[0]} are expected"
        )
    if encoded.startswith(PNG_START):
        return _decoded_by_pillow(_pixels_alone(encoded), "PNG")
    if encoded.count(b"\xff\xda") > MAX_SCANS:
        raise OSError(f"the image does not decode (it has more than {MAX_SCANS} scans)")
    try:
        if simplejpeg.decode_jpeg_header(encoded)[2] in DIRECT:
            decoded: Frames = simplejpeg.decode_jpeg(encoded)
            return decoded
    except ValueError:
        pass  # damaged; Pillow says more about it
    return _decoded_by_pillow(encoded, "JPEG")


def _png_size(encoded: bytes) -> tuple[int, int]:
    if len(encoded) < 26 or encoded[12:16] != b"IHDR":
        raise OSError("the image does not decode (a PNG without its header)")
    width, height, depth, colours = struct.unpack(">IIBB", encoded[16:26])
    if depth == 16 and colours in (0, 4):
        raise OSError(
            "the image is a grey PNG of 16 bits, as depth is stored; the policy takes RGB of 8 bits"
        )
    return height, width


def _jpeg_size(encoded: bytes) -> tuple[int, int]:
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
                width, height = image.size
        except Exception as error:  # Pillow names no complete list of what it raises
            raise OSError(f"the image does not decode ({error})") from error
    return height, width


def _pixels_alone(encoded: bytes) -> bytes:
    """Return a PNG without the chunks that its pixels do not need."""
    kept, at = [PNG_START], len(PNG_START)
    while at + 8 <= len(encoded):
        end = at + 12 + int.from_bytes(encoded[at : at + 4], "big")
        if (kind := encoded[at + 4 : at + 8]) in PIXEL_CHUNKS:
            kept.append(encoded[at:end])
        if kind == b"IEND":
            break
        at = end
    return b"".join(kept)


def _decoded_by_pillow(encoded: bytes, kind: str) -> Frames:
    try:
        with Image.open(io.BytesIO(encoded), formats=(kind,)) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow names no complete list of what it raises
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
