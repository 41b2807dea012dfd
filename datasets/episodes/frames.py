"""Camera frames: JPEG encoding and decoding, resizing, and the types and orders in which files hold them."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, replace
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from ttm.datasets.hdf5 import read_rows
from ttm.datasets.layout import JPEG, MOST_JPEG_QUALITY
from ttm.policy.errors import UserError

Frames = npt.NDArray[np.uint8]

MAX_PIXELS = 2**25  # of the largest image that is decoded, 8K
MAX_SCANS = 100  # passes over the pixels of a progressive JPEG; encoders make about 10
JPEG_START, PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
"""The chunks of a PNG that its pixels need. Others may unpack to any size."""

DIRECT = ("YCbCr", "RGB", "Gray")  # colours of JPEGs that libjpeg-turbo decodes to RGB by itself


def require_jpeg_quality(name: str, quality: int | None) -> None:
    """Raise `UserError` unless the quality is 1 to `MOST_JPEG_QUALITY`, or None for no JPEGs.

    name: what the user calls it.
    """
    if quality is not None and not 1 <= quality <= MOST_JPEG_QUALITY:
        raise UserError(f"{name} is {quality}; give 1 to {MOST_JPEG_QUALITY}, or leave it out")


def encode_jpeg(frame: Frames, quality: int) -> Frames:
    """Return an RGB frame (H, W, 3) uint8 as a JPEG, (n,) uint8, with colour at full resolution."""
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
            f"the image does not decode (its header declares {width}x{height} pixels, too many)"
        )
    return height, width


def decode_image(data: bytes | Frames, size: tuple[int, int] | None = None) -> Frames:
    """Return the frame (H, W, 3) uint8 RGB of a JPEG or PNG, which zeros may follow.

    The bytes may be a stranger's: the header is judged before anything is decoded, no other format is
    tried, and what a PNG holds beside its pixels is not unpacked.

    data: bytes, or (n,) uint8. size: the height and width that the header must declare.
    Raises `OSError` if the image is damaged, cut short or of another size, and as `image_size`.
    """
    encoded = data if isinstance(data, bytes) else data.tobytes()
    declared = image_size(encoded)
    if size is not None and declared != size:
        raise OSError(f"the image has {declared[1]}x{declared[0]} pixels, not {size[1]}x{size[0]}")
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
        raise OSError("the image is a grey PNG of 16 bits, as depth is stored; give RGB of 8 bits")
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


Orientation = Literal["upright", "upside-down", "rotated"]
Colours = Literal["rgb", "bgr"]
Shape = tuple[int, int]

RANGE_SLACK = 1e-3  # by so much, in parts of their range, float frames may leave it

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
    return np.asarray(data[:8], np.uint8).tobytes().startswith((JPEG_START, PNG_START[:6]))


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
            f"float frames range from {rows.min():g} to {rows.max():g}, not {low:g} to {high:g}; give the "
            "camera's `values` in a --spec file"
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
