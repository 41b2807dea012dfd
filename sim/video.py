"""Videos of episodes: the scene from outside, and in its corner what the robot's cameras see."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageOps

from ttm.datasets.tools.play import Film

INSET = 4
"""What a camera sees is so many times smaller than the scene."""
FRAME_PX, FRAME = 3, "white"


class EpisodeVideo(Film):
    """Writes a film of an episode, as `Film` does, from the scene and the cameras."""

    def add(self, scene: np.ndarray, cameras: Mapping[str, np.ndarray]) -> None:
        """Add one tick. scene: (H, W, 3) uint8; cameras: name -> (h, w, 3) uint8."""
        self.show(compose_frame(scene, cameras))


def compose_frame(scene: np.ndarray, cameras: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the scene with the cameras in its lower right corner, the first one leftmost.

    The result is (H, W, 3) uint8, cut to even sides, as H.264 needs them.
    """
    height, width = (length - length % 2 for length in scene.shape[:2])
    canvas, side, left = Image.fromarray(scene[:height, :width]), height // INSET, width
    for frame in reversed(list(cameras.values())):
        shown = Image.fromarray(frame).resize((side, side), Image.Resampling.NEAREST)
        left -= side + 2 * FRAME_PX
        canvas.paste(ImageOps.expand(shown, FRAME_PX, FRAME), (left, height - side - 2 * FRAME_PX))
    return np.asarray(canvas)
