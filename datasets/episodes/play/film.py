"""Films: one frame a tick, in a file that is whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

import imageio
import numpy as np
import numpy.typing as npt
from PIL import Image

from ttm.policy.errors import UserError

Frame = npt.NDArray[np.uint8]

SomeFilm = TypeVar("SomeFilm", bound="Film")

HOLD_S = 1.5
"""How long the last frame stays, so that one sees how the episode ended."""


class Film:
    """Writes a film of an episode; a context manager.

    An episode that is broken off by an exception leaves no file.

    Parameters
    ----------
    path : Path
        An .mp4 file (H.264, which plays in every browser), or a .webp file (a moving picture that
        repeats, for pages).
    rate_hz : float
        Number of ticks in a second.

    Raises
    ------
    UserError
        If the name of the file ends in anything else.
    """

    def __init__(self, path: Path, rate_hz: float):
        if path.suffix not in WRITERS:
            raise UserError(f"cannot film to {path}; give a path that ends in .mp4 or .webp")
        self._path = path
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._rate_hz = rate_hz
        self._last: Frame | None = None

    def __enter__(self: SomeFilm) -> SomeFilm:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial.touch()  # FFmpeg does not say why it cannot write
        self._writer = WRITERS[self._path.suffix](self._partial, self._rate_hz)
        return self

    def show(self, frame: Frame) -> None:
        """Add one tick. frame: (H, W, 3) uint8, H and W even."""
        self._last = frame
        self._writer.append(frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._last is not None:
                for _ in range(round(HOLD_S * self._rate_hz)):
                    self._writer.append(self._last)
            self._writer.close()
            if kind is None and self._last is not None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


class Mp4Writer:
    """Writes frames as an mp4 file."""

    REPEATS = 3
    """Every frame is shown this many times: some browsers stutter below 10 frames a second."""

    def __init__(self, path: Path, rate_hz: float):
        self._writer = imageio.get_writer(
            path, fps=self.REPEATS * rate_hz, codec="libx264", pixelformat="yuv420p", quality=None,
            output_params=["-crf", "27", "-movflags", "+faststart"], macro_block_size=2,
        )  # fmt: skip

    def append(self, frame: Frame) -> None:
        """Add one tick."""
        for _ in range(self.REPEATS):
            self._writer.append_data(frame)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class WebpWriter:
    """Writes frames as a moving picture in WebP."""

    QUALITY = 75

    def __init__(self, path: Path, rate_hz: float):
        self._path, self._duration_ms = path, round(1000 / rate_hz)
        self._frames: list[Image.Image] = []

    def append(self, frame: Frame) -> None:
        """Add one tick."""
        self._frames.append(Image.fromarray(frame))

    def close(self) -> None:
        """Write the file."""
        if self._frames:
            first, *others = self._frames
            first.save(
                self._path,
                save_all=True,
                append_images=others,
                duration=self._duration_ms,
                loop=0,
                quality=self.QUALITY,
                method=6,
            )


WRITERS: Mapping[str, type[Mp4Writer | WebpWriter]] = MappingProxyType(
    {".mp4": Mp4Writer, ".webp": WebpWriter}
)
