"""Frames of the cameras in the scene, rendered off screen."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from ttm.sim.kitchen.culling import out_of_view
from ttm.sim.kitchen.drawn import drawn_state
from ttm.sim.kitchen.rendering import no_rendering
from ttm.sim.kitchen.spec import FRAME_PX

HIDDEN_GROUP = 5
"""A group of geoms that MuJoCo does not draw by default."""


@dataclass(frozen=True)
class _LastFrame:
    """The last frame of one camera."""

    state: bytes
    """What was drawn; see `drawn_state`."""
    pixels: np.ndarray


class Cameras:
    """The renderers of one scene, one for each size of frame.

    Two things are left out that change no bit of any frame: geoms that lie outside of the camera's
    view are not drawn, and a frame is not rendered again as long as nothing changes that cameras see.

    The renderer of the policy's frames is made at once, so that a machine that cannot render is
    found out early. It must also exist before the caller registers an exit handler that closes the
    cameras, since MuJoCo ends EGL in an exit handler of its own, which it registers when it first
    makes a renderer.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}
        self._last: dict[tuple[str, int, int], _LastFrame] = {}
        self._renderer(FRAME_PX, FRAME_PX)

    def frame(self, camera: str, height_px: int = FRAME_PX, width_px: int = FRAME_PX) -> np.ndarray:
        """Return the view of a camera of the scene, (height_px, width_px, 3) uint8 RGB.

        Raises `KeyError` if the scene has no such camera.
        """
        state = drawn_state(self._model, self._data)
        last = self._last.get((camera, height_px, width_px))
        if last is None or last.state != state:
            last = _LastFrame(state, self._render(camera, height_px, width_px))
            self._last[camera, height_px, width_px] = last
        return last.pixels.copy()

    def close(self) -> None:
        """Free the renderers. Others, of this process, go on rendering.

        A `Renderer` frees what belongs to the GL context that was last used, be it its own or not.
        Rendering a frame makes it its own.
        """
        for renderer in self._renderers.values():
            renderer.render()
            renderer.close()
        self._renderers.clear()
        self._last.clear()

    def _render(self, camera: str, height_px: int, width_px: int) -> np.ndarray:
        """Draw what the camera can see."""
        renderer = self._renderer(height_px, width_px)
        number = self._model.camera(camera).id
        hidden = out_of_view(self._model, self._data, number, width_px / height_px)
        groups = self._model.geom_group[hidden]
        self._model.geom_group[hidden] = HIDDEN_GROUP
        try:
            renderer.update_scene(self._data, number)
        finally:
            self._model.geom_group[hidden] = groups
        return renderer.render()

    def _renderer(self, height_px: int, width_px: int) -> mujoco.Renderer:
        size = (height_px, width_px)
        if size not in self._renderers:
            try:
                self._renderers[size] = mujoco.Renderer(self._model, height_px, width_px)
            except Exception as error:  # the GL bindings raise exceptions of many kinds
                raise no_rendering(error) from error
        return self._renderers[size]
