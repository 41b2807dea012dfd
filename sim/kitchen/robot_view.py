"""The robot of a compiled MuJoCo model, as `ttm.sim.robot_view` describes it."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np

from ttm.sim.kitchen.urdf import to_urdf
from ttm.sim.robot_view import ODOMETRY_FRAME, Frame, Pose, camera_frame

_OPTICAL = np.diag([1.0, -1.0, -1.0])
"""MuJoCo's cameras look along -z with y up; optical frames look along z with y down."""


class MujocoRobotView:
    """The bodies below one root body, with names without a prefix.

    Parameters
    ----------
    model, data : mujoco.MjModel, mujoco.MjData
        The simulator's own.
    base : str
        The name of the root body, with the prefix that all bodies of the robot have.
    prefix : str
        What the frames' names leave out.
    cameras : mapping of str to str
        The cameras of the policy's spec, and their names in the model.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        base: str,
        prefix: str,
        cameras: Mapping[str, str],
    ):
        self._model, self._data = model, data
        self._root = model.body(base).id
        self._bodies = _subtree(model, self._root)
        self._names = {b: model.body(b).name.removeprefix(prefix) for b in self._bodies}
        self._prefix = prefix
        self._cameras = {name: model.camera(inner).id for name, inner in cameras.items()}

    @property
    def frames(self) -> tuple[Frame, ...]:
        """See `RobotView`."""
        model, names = self._model, self._names
        base = Frame(names[self._root], ODOMETRY_FRAME, moves=True)
        links = [
            Frame(names[b], names[model.body_parentid[b]], moves=bool(model.body_jntnum[b]))
            for b in self._bodies[1:]
        ]
        cameras = [
            Frame(camera_frame(name), names[model.cam_bodyid[number]], moves=False)
            for name, number in self._cameras.items()
        ]
        return (base, *links, *cameras)

    @property
    def camera_fov_rad(self) -> Mapping[str, float]:
        """See `RobotView`."""
        return {
            name: float(np.deg2rad(self._model.cam_fovy[number]))
            for name, number in self._cameras.items()
        }

    def description(self) -> str:
        """See `RobotView`. The meshes are named by absolute paths of this machine."""
        return to_urdf(self._model, self._bodies, self._prefix)

    def poses(self) -> dict[str, Pose]:
        """See `RobotView`."""
        model, data = self._model, self._data
        poses = {}
        for body in self._bodies:
            parent = 0 if body == self._root else model.body_parentid[body]
            rotation = data.xmat[body].reshape(3, 3)
            poses[self._names[body]] = self._relative(parent, data.xpos[body], rotation)
        for name, camera in self._cameras.items():
            rotation = data.cam_xmat[camera].reshape(3, 3) @ _OPTICAL
            poses[camera_frame(name)] = self._relative(
                model.cam_bodyid[camera], data.cam_xpos[camera], rotation
            )
        return poses

    def _relative(self, parent: int, position_m: np.ndarray, rotation: np.ndarray) -> Pose:
        """Return a pose of the world in the frame of a body. Body 0 is the world."""
        inverse = self._data.xmat[parent].reshape(3, 3).T
        wxyz = np.zeros(4)
        mujoco.mju_mat2Quat(wxyz, (inverse @ rotation).ravel())
        return Pose(inverse @ (position_m - self._data.xpos[parent]), wxyz[[1, 2, 3, 0]])


def _subtree(model: mujoco.MjModel, root: int) -> list[int]:
    """Return a body and all bodies below it. MuJoCo numbers parents before their children."""
    found = [root]
    for body in range(root + 1, model.nbody):
        if model.body_parentid[body] in found:
            found.append(body)
    return found
