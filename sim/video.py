"""Videos of episodes: the scene from outside, what the robot's cameras see, and a caption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ttm.datasets.tools.play import Film

CAPTION_PX = 36
BACKGROUND = (24, 26, 30)
WHITE = (236, 238, 240)
GREY = (150, 156, 164)
GREEN = (88, 200, 120)


class EpisodeVideo(Film):
    """Writes a film of an episode, as `Film` does, from the scene and the cameras."""

    def add(
        self, scene: np.ndarray, cameras: Mapping[str, np.ndarray], info: Mapping[str, Any]
    ) -> None:
        """Add one tick.

        scene: (H, W, 3) uint8; cameras: name -> (h, w, 3) uint8; info: see
        `ttm.sim.rollout.OnTick`.
        """
        self.show(compose_frame(scene, cameras, info))


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
