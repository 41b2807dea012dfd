"""Decoding and resizing of camera frames."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ttm.datasets import frames as frames_module
from ttm.datasets.frames import PNG_START, decode_image, encode_jpeg, image_size
from ttm.datasets.windows import resized_frames
from ttm.policy import CameraSpec
from ttm.policy.spec import resize_frame


def picture(height: int = 48, width: int = 64) -> np.ndarray:
    """A smooth picture with noise, (height, width, 3) uint8."""
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack([rows * 3, columns * 2, rows + columns], axis=-1)
    noise = np.random.default_rng(0).integers(0, 40, (height, width, 3))
    return (smooth + noise).clip(0, 255).astype(np.uint8)


def encoded(kind: str, mode: str = "RGB", **options: object) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(picture()).convert(mode).save(buffer, format=kind, **options)
    return np.frombuffer(buffer.getvalue(), np.uint8)


@pytest.mark.parametrize(
    "data",
    [
        encode_jpeg(picture(), 90),
        encoded("JPEG", subsampling=2),
        encoded("JPEG", mode="L"),
        encoded("JPEG", mode="CMYK"),
        encoded("JPEG", progressive=True),
        encoded("PNG"),
    ],
    ids=["4:4:4", "4:2:0", "grey", "CMYK", "progressive", "PNG"],
)
def test_images_of_every_kind_decode_as_pillow_decodes_them(data):
    seen = np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB"))
    assert np.array_equal(decode_image(data), seen)
    padded = np.concatenate([data, np.zeros(500, np.uint8)])
    assert np.array_equal(decode_image(padded), decode_image(data))


def test_jpegs_do_not_go_through_pillow(monkeypatch):
    monkeypatch.setattr(frames_module.Image, "open", None)
    assert decode_image(encode_jpeg(picture(), 90)).shape == (48, 64, 3)


@pytest.mark.parametrize("cut", [0, 10, 100, 900])
def test_a_damaged_image_is_an_error(cut):
    with pytest.raises(OSError, match="does not decode"):
        decode_image(encode_jpeg(picture(), 90)[:cut])


def png_header(height: int, width: int, depth: int = 8, colours: int = 2) -> bytes:
    """The first chunk of a PNG, behind its signature."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def huge_jpeg() -> bytes:
    data = encode_jpeg(picture(), 90).tobytes()
    start = data.index(b"\xff\xc0") + 5  # height and width in the frame header
    return data[:start] + struct.pack(">HH", 30000, 30000) + data[start + 4 :]


HUGE_PNG = PNG_START + png_header(30000, 30000) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("data", [huge_jpeg(), HUGE_PNG], ids=["JPEG", "PNG"])
def test_an_image_that_declares_a_huge_size_is_not_decoded(data, monkeypatch):
    monkeypatch.setattr(frames_module.Image, "open", None)
    monkeypatch.setattr(frames_module.simplejpeg, "decode_jpeg", None)
    with pytest.raises(OSError, match=r"declares \d+x\d+ pixels, too many"):
        decode_image(data)
    with pytest.raises(OSError, match="declares"):
        image_size(data)


def test_only_jpegs_and_pngs_are_opened(tmp_path, monkeypatch):
    """Pillow starts Ghostscript for what begins as PostScript."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\nshowpage\n%%EOF\n"
    for data in (script, encoded("BMP").tobytes(), encoded("TIFF").tobytes(), b""):
        with pytest.raises(OSError, match="neither a JPEG nor a PNG"):
            decode_image(data)
    assert not (tmp_path / "started").exists()


def test_text_of_a_png_is_not_unpacked():
    """Pillow would unpack and keep up to 64 MB of it, and fails on what is damaged."""
    data = encoded("PNG").tobytes()
    header = len(PNG_START) + 25
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2_000_000)))
    frame = decode_image(data[:header] + bomb * 3 + data[header:])
    assert np.array_equal(frame, decode_image(data))


def test_the_header_must_declare_the_expected_size():
    data = encoded("PNG")
    assert image_size(data) == (48, 64)
    assert decode_image(data, (48, 64)).shape == (48, 64, 3)
    with pytest.raises(OSError, match="64x48 pixels, not 48x64"):
        decode_image(data, (64, 48))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_whatever_bytes_change_the_only_error_is_an_os_error(kind):
    data, random = encoded(kind), np.random.default_rng(0)
    for _ in range(300):
        damaged = data.copy()
        damaged[random.integers(0, len(data), 4)] = random.integers(0, 256, 4)
        with contextlib.suppress(OSError):
            assert decode_image(damaged).dtype == np.uint8


def test_depth_is_no_picture():
    """Pillow clips a grey PNG of 16 bits: all but the nearest turns white."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((48, 64), 1200, np.uint16)).save(buffer, format="PNG")
    with pytest.raises(OSError, match="grey PNG of 16 bits"):
        decode_image(buffer.getvalue())


def test_too_many_scans_are_refused():
    with pytest.raises(OSError, match="scans"):
        decode_image(encoded("JPEG", progressive=True).tobytes() + b"\xff\xda" * 100)


def test_whole_factors_average_areas():
    frame = picture()
    means = frame.reshape(24, 2, 16, 4, 3).mean(axis=(1, 3))
    assert np.abs(resize_frame(frame, 24, 16) - means).max() <= 1


@pytest.mark.parametrize("colours", [2, 6], ids=["RGB", "RGBA"])
def test_colours_of_16_bits_become_8_bits(colours):
    values = np.array([[[0, 25_700, 65_535], [300, 40_000, 1_000]]])
    alpha = np.full((1, 2, 1), 65_535)
    rows = (np.concatenate([values, alpha], axis=2) if colours == 6 else values).astype(">u2")
    header = struct.pack(">IIBBBBB", 2, 1, 16, colours, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(b"\0" + rows.tobytes()), b"IEND": b""}
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    ]
    frame = decode_image(PNG_START + b"".join(chunks))
    np.testing.assert_allclose(frame, values / 257, atol=1)


@pytest.mark.parametrize("size", [(24, 16), (20, 30), (17, 64), (96, 70), (48, 64)])
def test_a_training_sees_frames_as_the_robot_resizes_them(size):
    frame = picture()
    several = np.stack([frame, frame[::-1]])
    resized = resized_frames(several, CameraSpec("head", *size))
    assert resized.shape == (2, *size, 3)
    for one, source in zip(resized, several, strict=True):
        assert np.abs(one.astype(int) - resize_frame(source, *size)).max() <= 1


def test_other_factors_lose_no_line_of_pixels():
    """A bright line shows after the reduction wherever it lies, which areas of whole pixels miss."""
    for row in range(48):
        frame = np.zeros((48, 64, 3), np.uint8)
        frame[row] = 255
        assert abs(resize_frame(frame, 40, 64).sum() / (255 * 64 * 3) - 40 / 48) < 0.3
