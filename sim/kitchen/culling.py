"""Which geoms lie outside of a camera's view.

Most of the time of a frame goes into geoms that the camera cannot see, such as the robot's own base:
without a graphics card the renderer works through all of their vertices before it finds that none of
their triangles reaches the picture.
"""

from __future__ import annotations

import mujoco
import numpy as np
import numpy.typing as npt

MARGIN = 1e-3
"""The view is taken this much wider than it is, relatively, since the renderer rounds to float32."""


def out_of_view(
    model: mujoco.MjModel, data: mujoco.MjData, camera: int, aspect: float
) -> npt.NDArray[np.bool_]:
    """Return which geoms the camera cannot see, (number of geoms,) bool.

    A geom is out of view if its bounding box (`geom_aabb`) lies wholly on the outer side of one of the
    planes that bound what the camera sees: the near plane and the four sides of its pyramid. Without
    it the frame is the same to the bit, in any pose of robot and camera. Some geoms near an edge of
    the pyramid are kept although they are not in view, and so are planes, which may have no end.

    camera: its number in the model; aspect: the width of the frame over its height.
    """
    near_m = model.vis.map.znear * model.stat.extent * (1 - MARGIN)
    normals = _inward_normals(model.cam_fovy[camera], aspect)
    normals = normals @ data.cam_xmat[camera].reshape(3, 3).T
    axes = data.geom_xmat.reshape(-1, 3, 3).transpose(0, 2, 1).reshape(-1, 3) @ normals.T
    axes = axes.reshape(-1, 3, 5)  # the normals in the frame of each geom
    centres, half_sizes = model.geom_aabb[:, :3, None], model.geom_aabb[:, 3:, None]
    furthest_m = (axes * centres + np.abs(axes) * half_sizes).sum(axis=1)
    furthest_m += (data.geom_xpos - data.cam_xpos[camera]) @ normals.T
    furthest_m[:, 0] -= near_m
    bounded = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    return bounded & (furthest_m < 0.0).any(axis=1)


def _inward_normals(fovy_deg: float, aspect: float) -> npt.NDArray[np.float64]:
    """Return the normals of the bounding planes in the camera's frame, (5, 3).

    They point into the view. The first is that of the near plane; the other planes go through the
    camera, which looks along -z.
    """
    up = np.tan(np.radians(fovy_deg) / 2) * (1 + MARGIN)
    side = up * aspect
    return np.array([(0, 0, -1), (-1, 0, -side), (1, 0, -side), (0, -1, -up), (0, 1, -up)])
