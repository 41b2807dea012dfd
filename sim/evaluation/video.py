"""Videos of episodes: the scene from outside, what the robot's cameras see, and a caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ttm.policy.errors import UserError

CAPTION_PX = 36
HOLD_S = 1.5
"""How long the last frame stays, so that one sees how the episode ended."""
BACKGROUND = (24, 26, 30)
WHITE = (236, 238, 240)
GREY = (150, 156, 164)
GREEN = (88, 200, 120)


class EpisodeVideo:
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
        self._last: np.ndarray | None = None

    def __enter__(self) -> EpisodeVideo:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = WRITERS[self._path.suffix](self._partial, self._rate_hz)
        return self

    def add(
        self, scene: np.ndarray, cameras: Mapping[str, np.ndarray], info: Mapping[str, Any]
    ) -> None:
        """Add one tick.

        scene: (H, W, 3) uint8; cameras: name -> (h, w, 3) uint8; info: see
        `ttm.sim.evaluation.rollout.OnTick`.
        """
        self.show(compose_frame(scene, cameras, info))

    def show(self, frame: np.ndarray) -> None:
        """Add one tick whose picture is made already. frame: (H, W, 3) uint8, H and W even."""
        self._last = frame
        self._writer.append(frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._last is not None:
            for _ in range(round(HOLD_S * self._rate_hz)):
                self._writer.append(self._last)
        self._writer.close()
        if kind is None and self._partial.exists():
            self._partial.replace(self._path)
        else:
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

    def append(self, frame: np.ndarray) -> None:
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

    def append(self, frame: np.ndarray) -> None:
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


def compose_frame(
    scene: np.ndarray, cameras: Mapping[str, np.ndarray], info: Mapping[str, Any]
) -> np.ndarray:
    """Return the scene with the cameras beside it and a caption below it.

    The result is (H + caption, W + side, 3) uint8 with even sides, as H.264 needs them.
    """
    height, width = scene.shape[:2]
    side = height // max(len(cameras), 1)
    canvas = Image.new("RGB", (_even(width + side), _even(height + CAPTION_PX)), BACKGROUND)
    canvas.paste(Image.fromarray(scene), (0, 0))
    draw = ImageDraw.Draw(canvas)
    for place, (name, frame) in enumerate(cameras.items()):
        corner = (width, place * side)
        canvas.paste(Image.fromarray(frame).resize((side, side), Image.Resampling.NEAREST), corner)
        draw.text(
            (corner[0] + 6, corner[1] + 4),
            name,
            WHITE,
            _font(14),
            stroke_width=2,
            stroke_fill=BACKGROUND,
        )
    _caption(draw, canvas.width, height, info)
    return np.asarray(canvas)


def _caption(draw: ImageDraw.ImageDraw, width: int, top: int, info: Mapping[str, Any]) -> None:
    middle = top + CAPTION_PX / 2
    draw.text((12, middle), f"“{info['instruction']}”", WHITE, _font(18), anchor="lm")
    clock = f"tick {info['tick']}   {info['time_s']:.1f} s"
    draw.text((width - 110, middle), clock, GREY, _font(14), anchor="rm")
    word, colour = ("success", GREEN) if info["success"] else ("running", GREY)
    draw.text((width - 12, middle), word, colour, _font(16), anchor="rm")


def _font(size_px: int) -> Any:
    return ImageFont.load_default(size_px)


def _even(pixels: int) -> int:
    return pixels + pixels % 2
