"""Frames without any saving, to compare with."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from ttm.sim.kitchen.spec import FRAME_PX

Frame = Callable[[str], np.ndarray]
"""The name of a camera -> its view, (64, 64, 3) uint8 RGB."""


class Everything:
    """Draws the whole scene at every call, in view or not, and changed or not."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._renderer, self._data = mujoco.Renderer(model, FRAME_PX, FRAME_PX), data

    def frame(self, camera: str) -> np.ndarray:
        """Return the view of a camera, (64, 64, 3) uint8 RGB."""
        self._renderer.update_scene(self._data, camera)
        frame: np.ndarray = self._renderer.render()
        return frame

    def close(self) -> None:
        """Free the renderer. Rendering makes its GL context the one that is freed."""
        self._renderer.render()
        self._renderer.close()
