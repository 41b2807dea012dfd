"""Frames of the cameras in the scene, rendered off screen."""

from __future__ import annotations

import mujoco
import numpy as np

from ttm.sim.kitchen.rendering import no_rendering
from ttm.sim.kitchen.spec import FRAME_PX


class Cameras:
    """The renderers of one scene, one for each size of frame.

    The renderer of the policy's frames is made at once, so that a machine that cannot render is
    found out early. It must also exist before the caller registers an exit handler that closes the
    cameras, since MuJoCo ends EGL in an exit handler of its own, which it registers when it first
    makes a renderer.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}
        self._renderer(FRAME_PX, FRAME_PX)

    def frame(self, camera: str, height_px: int = FRAME_PX, width_px: int = FRAME_PX) -> np.ndarray:
        """Return the view of a camera of the scene, (height_px, width_px, 3) uint8 RGB."""
        renderer = self._renderer(height_px, width_px)
        renderer.update_scene(self._data, camera)
        return renderer.render().copy()

    def close(self) -> None:
        """Free the renderers."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _renderer(self, height_px: int, width_px: int) -> mujoco.Renderer:
        size = (height_px, width_px)
        if size not in self._renderers:
            try:
                self._renderers[size] = mujoco.Renderer(self._model, height_px, width_px)
            except Exception as error:  # the GL bindings raise exceptions of many kinds
                raise no_rendering(error) from error
        return self._renderers[size]
