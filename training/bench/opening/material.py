"""The episodes of `ttm bench opening`: as many as asked for, no two alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ttm.datasets.access.unreadable import one_line
from ttm.datasets.convert.demo_group import write_demo_file
from ttm.datasets.convert.recording import FrameStream, Recording
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec

TICKS, SIDE = 16, 64
JPEG_QUALITY = 90
SPEC = PolicySpec(
    robot="bench",
    cameras=(CameraSpec("head", SIDE, SIDE),),
    proprioception=(ProprioceptionSpec("joints", tuple(f"{i} (rad)" for i in range(7))),),
    actions=(ActionPart("arm", 7, "m"),),
    rate_hz=10.0,
)


def write_files(folder: Path, episodes: int, files: int) -> None:
    """Write episodes to so many files, which have nearly equally many of them.

    Raises `UserError` if they cannot be written.
    """
    try:
        folder.mkdir()
        for number, portion in enumerate(np.array_split(np.arange(episodes), files)):
            _write_file(folder / f"episodes_{number:06d}.hdf5", portion.tolist())
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({one_line(error.strerror or error)}); give a --folder where there is "
            "space, and where you may write"
        ) from error


def _write_file(path: Path, numbers: Sequence[int]) -> None:
    recordings = ((place, _recording(number)) for place, number in enumerate(numbers))
    write_demo_file(path, SPEC, recordings, jpeg_quality=JPEG_QUALITY)


def _recording(number: int) -> Recording:
    """Return an episode that differs from those of other numbers in actions, vectors and frames."""
    rng = np.random.default_rng(number)
    grey = rng.integers(0, 200, (TICKS, 1, 1, 3), dtype=np.uint8)
    frames = np.broadcast_to(grey, (TICKS, SIDE, SIDE, 3)).copy()
    frames[:, : SIDE // 2, : SIDE // 2] += 50
    return Recording(
        name=f"demo_{number}",
        actions=rng.normal(size=(TICKS, 7)).astype(np.float32),
        vectors={"joints": rng.normal(size=(TICKS, 7)).astype(np.float32)},
        cameras={"head": FrameStream(partial(iter, frames))},
        instruction="bench",
        language_embedding=np.full(384, 384**-0.5, np.float32),
    )
