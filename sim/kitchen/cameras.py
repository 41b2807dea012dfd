"""Frames of the cameras in the scene, rendered off screen."""

from __future__ import annotations

import mujoco
import numpy as np
import numpy.typing as npt

from ttm.sim.kitchen.objects import BOX, CAPSULE, CYLINDER, ELLIPSOID, HIDDEN_GROUP
from ttm.sim.kitchen.rendering import no_rendering
from ttm.sim.kitchen.spec import FRAME_PX

Renderer = mujoco.Renderer
"""For other packages, which do not import MuJoCo: it looks for a screen if it comes before `ttm.sim`."""
MARGIN = 1e-3
"""The view is taken this much wider than it is, relatively, since the renderer rounds to float32."""
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
SUN = 0  # the light that casts shadows in pictures for people
STEEL, PAPER, COFFEE = (0.75, 0.76, 0.78), (0.95, 0.93, 0.86), (0.25, 0.14, 0.07)
YELLOW, GREEN, PURPLE = (0.95, 0.78, 0.10), (0.10, 0.52, 0.18), (0.48, 0.16, 0.60)
DETAILS = {
    "red can": (
        (CYLINDER, (0.027, 0.002), (0, 0, 0.066), STEEL), (CYLINDER, (0.0313, 0.002), (0, 0, 0.062), STEEL),
        (CYLINDER, (0.0313, 0.002), (0, 0, -0.062), STEEL), (CYLINDER, (0.0313, 0.016), (0, 0, 0), PAPER),
        (BOX, (0.009, 0.004, 0.001), (-0.006, 0, 0.0685), (0.5, 0.5, 0.52)),
    ),
    "green bottle": (
        (ELLIPSOID, (0.03, 0.03, 0.035), (0, 0, 0.04), GREEN),
        (CYLINDER, (0.0303, 0.03), (0, 0, -0.04), PAPER),
        (CYLINDER, (0.0306, 0.01), (0, 0, -0.04), GREEN), (CYLINDER, (0.0155, 0.01), (0, 0, 0.094), STEEL),
    ),
    "blue box": (
        (BOX, (0.0284, 0.02, 0.03), (0, 0, 0.005), PAPER), (BOX, (0.02, 0.0284, 0.03), (0, 0, 0.005), PAPER),
        (BOX, (0.0284, 0.0284, 0.001), (0, 0, 0.058), STEEL),
        (BOX, (0.006, 0.028, 0.001), (0, 0, 0.0755), PAPER),
    ),
    "yellow mug": (
        (CYLINDER, (0.030, 0.001), (0, 0, 0.0605), COFFEE), (CAPSULE, (0.005, 0.024), (0.058, 0, 0), YELLOW),
        *((BOX, (0.013, 0.005, 0.005), (0.046, 0, z_m), YELLOW) for z_m in (-0.024, 0.024)),
    ),
    "purple jar": (
        (CYLINDER, (0.0333, 0.022), (0, 0, -0.015), PAPER),
        (CYLINDER, (0.0336, 0.003), (0, 0, -0.015), PURPLE),
        (CYLINDER, (0.0312, 0.009), (0, 0, 0.059), STEEL),
    ),
}  # fmt: skip
"""Body -> kind, size, place and colour of what pictures for people add to it: labels, lids, a handle."""


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
    axes = (normals @ data.geom_xmat.T.reshape(3, -1)).reshape(5, 3, -1)  # in each geom's frame
    centres, half_sizes = model.geom_aabb.T.reshape(2, 3, -1)
    furthest_m = (axes * centres + np.abs(axes) * half_sizes).sum(axis=1)
    furthest_m += normals @ (data.geom_xpos - data.cam_xpos[camera]).T
    furthest_m[0] -= near_m
    plane = int(mujoco.mjtGeom.mjGEOM_PLANE)  # NumPy compares the enum 100 times more slowly
    bounded = model.geom_type != plane
    return bounded & (furthest_m < 0.0).any(axis=0)


class Cameras:
    """The renderers of one scene, one for each size of frame.

    Two things are left out that change no bit of any frame: geoms that lie outside of the camera's
    view are not drawn, and a frame is not rendered again as long as nothing changes that cameras see.
    The shapes of meshes, textures and what `OF_MODEL` does not name must not change once the model is
    compiled.

    The renderer of the policy's frames is made at once: it must exist before the caller registers an
    exit handler that closes the cameras, since MuJoCo ends EGL in one of its own, which it registers
    when it first makes a renderer.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._plain = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, next(iter(DETAILS))) >= 0
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

    def places(self, camera: str, points_m: np.ndarray) -> np.ndarray:
        """Return where a camera has points of the world, (n, 3) m, in its square frame: (n, 3) float.

        It is x to the right and y down in portions of the frame, and how far ahead, m; NaN out of view. A
        point counts as in view although something may stand before it.
        """
        pose, fov_deg = self._data.camera(camera), self._model.camera(camera).fovy[0]
        x, y, z = ((points_m - pose.xpos) @ pose.xmat.reshape(3, 3)).T
        ahead_m = np.where(z < 0.0, -z, np.nan)  # it looks along -z
        wide_m = 2 * ahead_m * np.tan(np.radians(fov_deg) / 2)
        found = np.stack([0.5 + x / wide_m, 0.5 - y / wide_m, ahead_m], axis=1)
        found[~((found[:, :2] >= 0) & (found[:, :2] < 1)).all(axis=1)] = np.nan
        return found

    def picture(self, height_px: int, middle_m: np.ndarray) -> np.ndarray:
        """Return the scene around a point as people see it, (height_px, 4/3 height_px, 3) uint8 RGB.

        It has shadows, and details that the policy's cameras do not see.
        """
        renderer, camera = self._renderer(height_px, height_px * 4 // 3), mujoco.MjvCamera()
        camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = middle_m, 2.0, 56, -20
        self._model.light_castshadow[SUN] = True
        renderer.update_scene(self._data, camera)
        self._model.light_castshadow[SUN] = False
        scene = renderer.scene
        for name, parts in DETAILS.items() if self._plain else ():
            body = self._data.body(name)
            rotation = body.xmat.reshape(3, 3)
            for kind, size, place, rgb in parts:
                at, turn = body.xpos + rotation @ place, body.xmat
                geom = scene.geoms[scene.ngeom]
                mujoco.mjv_initGeom(
                    geom, kind, (*size, 0)[:3], at, turn, np.array((*rgb, 1), np.float32)
                )
                scene.ngeom += 1
        return renderer.render()

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
            buffer = self._model.vis.global_
            own = buffer.offwidth, buffer.offheight
            buffer.offwidth, buffer.offheight = max(own[0], width_px), max(own[1], height_px)
            try:
                self._renderers[size] = mujoco.Renderer(self._model, height_px, width_px)
            except Exception as error:  # the GL bindings raise exceptions of many kinds
                raise no_rendering(error) from error
            finally:
                buffer.offwidth, buffer.offheight = own
        return self._renderers[size]
