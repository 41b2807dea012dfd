"""The episodes whose windows are loaded: made-up ones, in one file of each storage."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from ttm.datasets.frames import Frames, encode_jpeg
from ttm.datasets.layout import FORMAT_VERSION
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.bench.loader.options import FrameSize, Storage

CAMERA = "head"
VECTOR = "joints"
EPISODES, TICKS = 8, 32
JPEG_QUALITY = 90
DETAIL = 6
"""Pixels between two random values of a picture: cameras are smooth at this scale."""
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
    spec = made_up_spec(size)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(
            ttm_spec=spec.to_json(), ttm_format=FORMAT_VERSION, total=EPISODES * TICKS
        )
        for number in range(EPISODES):
            rng = np.random.default_rng(number)
            demo = data.create_group(f"demo_{number}")
            demo.attrs.update(num_samples=TICKS, language_instruction="bench")
            demo["actions"] = rng.normal(size=(TICKS, 7)).astype(np.float32)
            demo["language_embedding"] = np.full(384, 384**-0.5, np.float32)
            demo[f"obs/{VECTOR}"] = rng.normal(size=(TICKS, 7)).astype(np.float32)
            _write_frames(demo["obs"], size, storage, rng)


def _write_frames(
    group: h5py.Group, size: FrameSize, storage: Storage, rng: np.random.Generator
) -> None:
    shape = (TICKS, size.height, size.width, 3)
    if storage == "jpeg":
        bytes_type = h5py.vlen_dtype(np.uint8)
        stored = group.create_dataset(CAMERA, (TICKS,), bytes_type)
        stored.attrs["encoding"] = "jpeg"
    else:
        compression = "gzip" if storage == "gzip" else None
        chunks = (1, *shape[1:])
        stored = group.create_dataset(
            CAMERA, shape, np.uint8, chunks=chunks, compression=compression
        )
    for tick in range(TICKS):
        frame = _picture(size, rng)
        stored[tick] = encode_jpeg(frame, JPEG_QUALITY) if storage == "jpeg" else frame


def _picture(size: FrameSize, rng: np.random.Generator) -> Frames:
    """Return a smooth random picture with some noise, (H, W, 3) uint8."""
    coarse = rng.integers(
        0, 256, (-(-size.height // DETAIL), -(-size.width // DETAIL), 3), dtype=np.uint8
    )
    picture = Image.fromarray(coarse).resize((size.width, size.height), Image.Resampling.BICUBIC)
    noisy = np.asarray(picture) + rng.normal(0, NOISE, (size.height, size.width, 3))
    return noisy.clip(0, 255).astype(np.uint8)
