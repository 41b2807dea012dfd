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

    def write(
        place: tuple[float, float], text: str, colour: Any, size_px: int, **style: Any
    ) -> None:
        draw.text(place, text, colour, ImageFont.load_default(size_px), **style)

    for place, (name, frame) in enumerate(cameras.items()):
        top = place * side
        shown = Image.fromarray(frame).resize((side, side), Image.Resampling.NEAREST)
        canvas.paste(shown, (width, top))
        write((width + 6, top + 4), name, WHITE, 14, stroke_width=2, stroke_fill=BACKGROUND)
    middle, right = height + CAPTION_PX / 2, canvas.width
    write((12, middle), f"“{info['instruction']}”", WHITE, 18, anchor="lm")
    clock = f"tick {info['tick']}   {info['time_s']:.1f} s"
    write((right - 110, middle), clock, GREY, 14, anchor="rm")
    word, colour = ("success", GREEN) if info["success"] else ("running", GREY)
    write((right - 12, middle), word, colour, 16, anchor="rm")
    return np.asarray(canvas)


def _even(pixels: int) -> int:
    return pixels + pixels % 2
