"""Decoding and resizing of camera frames."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from ttm.datasets import frames as frames_module
from ttm.datasets.frames import decode_jpeg, encode_jpeg, resize_frame
from ttm.datasets.windows.resizing import resized_frames
from ttm.policy.spec import CameraSpec


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
    assert np.array_equal(decode_jpeg(data), seen)
    padded = np.concatenate([data, np.zeros(500, np.uint8)])
    assert np.array_equal(decode_jpeg(padded), decode_jpeg(data))


def test_jpegs_do_not_go_through_pillow(monkeypatch):
    monkeypatch.setattr(frames_module.Image, "open", None)
    assert decode_jpeg(encode_jpeg(picture(), 90)).shape == (48, 64, 3)


@pytest.mark.parametrize("cut", [0, 10, 100, 900])
def test_a_damaged_image_is_an_error(cut):
    with pytest.raises(OSError, match="does not decode"):
        decode_jpeg(encode_jpeg(picture(), 90)[:cut])


def test_an_image_that_declares_a_huge_size_is_not_decoded():
    data = encode_jpeg(picture(), 90).copy()
    start = data.tobytes().index(b"\xff\xc0") + 5  # height and width in the frame header
    data[start : start + 4] = 0xFF
    with pytest.raises(OSError, match=r"does not decode.*bomb"):
        decode_jpeg(data)


def test_whole_factors_average_areas():
    frame = picture()
    means = frame.reshape(24, 2, 16, 4, 3).mean(axis=(1, 3))
    assert np.abs(resize_frame(frame, 24, 16) - means).max() <= 1


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
