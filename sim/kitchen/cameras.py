"""Frames of the cameras in the scene, rendered off screen."""

from __future__ import annotations

import mujoco
import numpy as np
import numpy.typing as npt

from ttm.sim.kitchen.rendering import no_rendering
from ttm.sim.kitchen.spec import FRAME_PX

MARGIN = 1e-3
"""The view is taken this much wider than it is, relatively, since the renderer rounds to float32."""
HIDDEN_GROUP = 5
"""A group of geoms that MuJoCo does not draw by default."""
OF_MODEL = (
    "geom_group", "geom_matid", "geom_rgba", "geom_size", "mat_rgba", "mat_emission", "site_group",
    "site_rgba", "site_size", "light_active", "light_ambient", "light_diffuse", "cam_fovy",
)  # fmt: skip
"""Fields of the model that a task may change during an episode to show something."""
OF_DATA = (
    "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "light_xpos", "light_xdir", "cam_xpos",
    "cam_xmat",
)  # fmt: skip
"""Fields of the simulator's state that MuJoCo draws with its default options."""


def out_of_view(
    model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float
) -> npt.NDArray[np.bool_]:
    """Return which geoms the camera cannot see, (number of geoms,) bool.

    Without them the frame is the same to the bit. Their bounding boxes (`geom_aabb`) lie wholly on the
    outer side of one of the planes that bound the view: the near plane and the four sides of its pyramid.
    Planes, which may have no end, are kept.

    camera: its number in the model; aspect: the width of the frame over its height.
    """
    near_m = model.vis.map.znear * model.stat.extent * (1 - MARGIN)
    up = np.tan(np.radians(model.cam_fovy[camera]) / 2) * (1 + MARGIN)
    side = up * aspect
    # The inward normals of the planes, the near plane first. The camera looks along -z.
    planes = np.array([(0, 0, -1), (-1, 0, -side), (1, 0, -side), (0, -1, -up), (0, 1, -up)])
    normals = planes @ data.cam_xmat[camera].reshape(3, 3).T
    axes = data.geom_xmat.reshape(-1, 3, 3).transpose(0, 2, 1).reshape(-1, 3) @ normals.T
    axes = axes.reshape(-1, 3, 5)  # the normals in the frame of each geom
    centres, half_sizes = model.geom_aabb[:, :3, None], model.geom_aabb[:, 3:, None]
    furthest_m = (axes * centres + np.abs(axes) * half_sizes).sum(axis=1)
    furthest_m += (data.geom_xpos - data.cam_xpos[camera]) @ normals.T
    furthest_m[:, 0] -= near_m
    bounded = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    return bounded & (furthest_m < 0.0).any(axis=1)


class Cameras:
    """The renderers of one scene, one for each size of frame.

    Two things are left out that change no bit of any frame: geoms that lie outside of the camera's
    view are not drawn, and a frame is not rendered again as long as nothing changes that cameras see.
    The shapes of meshes, textures and what `OF_MODEL` does not name must not change once the model is
    compiled.

    The renderer of the policy's frames is made at once, so that a machine that cannot render is
    found out early. It must also exist before the caller registers an exit handler that closes the
    cameras, since MuJoCo ends EGL in an exit handler of its own, which it registers when it first
    makes a renderer.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}
        self._last: dict[tuple[str, int, int], tuple[bytes, np.ndarray]] = {}
        self._renderer(FRAME_PX, FRAME_PX)

    def frame(self, camera: str, height_px: int = FRAME_PX, width_px: int = FRAME_PX) -> np.ndarray:
        """Return the view of a camera of the scene, (height_px, width_px, 3) uint8 RGB.

        Raises `KeyError` if the scene has no such camera.
        """
        fields = [getattr(self._model, name) for name in OF_MODEL]
        fields += [getattr(self._data, name) for name in OF_DATA]
        drawn, key = b"".join(field.tobytes() for field in fields), (camera, height_px, width_px)
        if key not in self._last or self._last[key][0] != drawn:
            self._last[key] = drawn, self._render(camera, height_px, width_px)
        return self._last[key][1].copy()

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
        renderer, number = self._renderer(height_px, width_px), self._model.camera(camera).id
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
