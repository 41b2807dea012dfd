"""The episodes whose windows are loaded: made-up ones, in one file of each storage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from ttm.datasets.convert.demo_group import write_demo_file
from ttm.datasets.convert.recording import FrameStream, Recording
from ttm.datasets.frames import Frames
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.bench.loader.options import FrameSize, Storage

CAMERA = "head"
VECTOR = "joints"
EPISODES, TICKS = 8, 32
JPEG_QUALITY = 90
DETAIL = 20
"""Pixels between two random values of a picture: cameras are smooth at this scale.

JPEGs of 640x480 then have about 96 kB each. Photographs have 74 to 125 kB: flower.jpg and china.jpg of
scikit-learn, enlarged to 640x480, by `encode_jpeg` in quality 90, as the recorder writes."""
NOISE = 2.0
"""The standard deviation of a sensor's noise."""


def made_up_spec(size: FrameSize) -> PolicySpec:
    """Return the spec of an arm with one camera."""
    return PolicySpec(
        robot="bench",
        cameras=(CameraSpec(CAMERA, size.height, size.width),),
        proprioception=(ProprioceptionSpec(VECTOR, tuple(f"{i} (rad)" for i in range(7))),),
        actions=(ActionPart("arm", 7, "m"),),
        rate_hz=10.0,
    )


def write_data(path: Path, size: FrameSize, storage: Storage) -> None:
    """Write a file of `EPISODES` demos, as robomimic writes them too; those of "ram" are raw."""
    write_demo_file(
        path,
        made_up_spec(size),
        ((number, _recording(number, size)) for number in range(EPISODES)),
        jpeg_quality=JPEG_QUALITY if storage == "jpeg" else None,
        compression="gzip" if storage == "gzip" else "none",
    )


def frame_kb(path: Path) -> float:
    """Return the size of a frame in a file of `write_data`, in thousands of bytes."""
    return path.stat().st_size / (EPISODES * TICKS) / 1e3


def _recording(number: int, size: FrameSize) -> Recording:
    rng = np.random.default_rng(number)
    return Recording(
        name=f"demo_{number}",
        actions=rng.normal(size=(TICKS, 7)).astype(np.float32),
        vectors={VECTOR: rng.normal(size=(TICKS, 7)).astype(np.float32)},
        cameras={CAMERA: FrameStream(partial(_pictures, number, size))},
        instruction="bench",
        language_embedding=np.full(384, 384**-0.5, np.float32),
    )


def _pictures(number: int, size: FrameSize) -> Iterator[Frames]:
    rng = np.random.default_rng((number, 1))
    return (_picture(size, rng) for _ in range(TICKS))


def _picture(size: FrameSize, rng: np.random.Generator) -> Frames:
    """Return a smooth random picture with some noise, (H, W, 3) uint8."""
    coarse = rng.integers(
        0, 256, (-(-size.height // DETAIL), -(-size.width // DETAIL), 3), dtype=np.uint8
    )
    picture = Image.fromarray(coarse).resize((size.width, size.height), Image.Resampling.BICUBIC)
    noisy = np.asarray(picture) + rng.normal(0, NOISE, (size.height, size.width, 3))
    return noisy.clip(0, 255).astype(np.uint8)
