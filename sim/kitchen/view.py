"""The robot of a compiled MuJoCo model, as `ttm.sim.environment` describes it, and as URDF."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import mujoco
import numpy as np

from ttm.sim.environment import ODOMETRY_FRAME, Frame, Pose, camera_frame

_OPTICAL = np.diag([1.0, -1.0, -1.0])
"""MuJoCo's cameras look along -z with y up; optical frames look along z with y down."""
_JOINTS = {
    mujoco.mjtJoint.mjJNT_HINGE: ("revolute", "continuous"),
    mujoco.mjtJoint.mjJNT_SLIDE: ("prismatic", "prismatic"),
}
"""Type of a joint in MuJoCo -> in URDF, with limits and without."""


class MujocoRobotView:
    """A `RobotView` of the bodies below one root body.

    base: the name of the root body, with the prefix that all bodies of the robot have and the frames' names
    leave out. cameras: those of the policy's spec -> their names in the model.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        base: str,
        prefix: str,
        cameras: Mapping[str, str],
    ):
        self._model, self._data, self._prefix = model, data, prefix
        root = model.body(base).id
        self._bodies = [root]
        for body in range(root + 1, model.nbody):  # parents are numbered before their children
            if model.body_parentid[body] in self._bodies:
                self._bodies.append(body)
        self._names = {b: model.body(b).name.removeprefix(prefix) for b in self._bodies}
        self._cameras = {name: model.camera(inner).id for name, inner in cameras.items()}

    @property
    def frames(self) -> tuple[Frame, ...]:
        model, names = self._model, self._names
        base = Frame(names[self._bodies[0]], ODOMETRY_FRAME, moves=True)
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
        return {
            name: float(np.deg2rad(self._model.cam_fovy[number]))
            for name, number in self._cameras.items()
        }

    def description(self) -> str:
        return to_urdf(self._model, self._bodies, self._prefix)

    def poses(self) -> dict[str, Pose]:
        model, data = self._model, self._data
        poses = {}
        for body in self._bodies:
            parent = 0 if body == self._bodies[0] else model.body_parentid[body]
            poses[self._names[body]] = self._relative(parent, data.xpos[body], data.xmat[body])
        for name, camera in self._cameras.items():
            rotation = data.cam_xmat[camera].reshape(3, 3) @ _OPTICAL
            parent, place_m = model.cam_bodyid[camera], data.cam_xpos[camera]
            poses[camera_frame(name)] = self._relative(parent, place_m, rotation)
        return poses

    def _relative(self, parent: int, position_m: np.ndarray, rotation: np.ndarray) -> Pose:
        """Return a pose of the world in the frame of a body. Body 0 is the world."""
        inverse = self._data.xmat[parent].reshape(3, 3).T
        wxyz = np.zeros(4)
        mujoco.mju_mat2Quat(wxyz, (inverse @ rotation.reshape(3, 3)).ravel())
        return Pose(inverse @ (position_m - self._data.xpos[parent]), wxyz[[1, 2, 3, 0]])


def to_urdf(model: mujoco.MjModel, bodies: Sequence[int], prefix: str) -> str:
    """Return the tree of `bodies` as URDF, without masses and collision shapes.

    The first body is the root; its own joints are left out. prefix: what the names of bodies and joints
    leave out. Meshes are named by absolute paths.
    """
    robot = Element("robot", name="robot")
    for body in bodies:
        link = SubElement(robot, "link", name=model.body(body).name.removeprefix(prefix))
        first = model.body_geomadr[body]
        for geom in range(first, first + model.body_geomnum[body]):
            _add_visual(link, model, geom)
    for body in bodies[1:]:
        _add_joint(robot, model, body, prefix)
    indent(robot)
    return tostring(robot, encoding="unicode", xml_declaration=True)


def _add_visual(link: Element, model: mujoco.MjModel, geom: int) -> None:
    """Add the shape of a geom. MuJoCo gives half sizes; a capsule becomes a cylinder."""
    visual, shape = SubElement(link, "visual"), Element("geometry")
    position_m, quaternion = model.geom_pos[geom].copy(), model.geom_quat[geom].copy()
    kind, size = model.geom_type[geom], model.geom_size[geom]
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        # MuJoCo moves each mesh to its centre of mass. This is where its file has it.
        back_m, back = np.zeros(3), np.zeros(4)
        mujoco.mju_negPose(back_m, back, model.mesh_pos[mesh], model.mesh_quat[mesh])
        position_m, quaternion = _composed(position_m, quaternion, back_m, back)
        path = model.paths[model.mesh_pathadr[mesh] :].split(b"\0")[0].decode()
        scale = _text(model.mesh_scale[mesh])
        SubElement(shape, "mesh", filename=f"file://{path}", scale=scale)
    elif kind == mujoco.mjtGeom.mjGEOM_BOX:
        SubElement(shape, "box", size=_text(2 * size))
    elif kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        SubElement(shape, "sphere", radius=_text(size[:1]))
    else:
        SubElement(shape, "cylinder", radius=_text(size[:1]), length=_text(2 * size[1:2]))
    _add_origin(visual, position_m, quaternion)
    visual.append(shape)
    material = SubElement(visual, "material", name=f"colour_{geom}")
    SubElement(material, "color", rgba=_text(model.geom_rgba[geom]))


def _add_joint(robot: Element, model: mujoco.MjModel, body: int, prefix: str) -> None:
    """Add the joint between a body and its parent, which is fixed if MuJoCo has none."""
    child, parent = model.body(body).name, model.body(model.body_parentid[body]).name
    position_m, quaternion = model.body_pos[body].copy(), model.body_quat[body].copy()
    joint, kind, name = model.body_jntadr[body], "fixed", f"{child.removeprefix(prefix)}_fixed"
    if joint >= 0:
        kind = _JOINTS[mujoco.mjtJoint(model.jnt_type[joint])][not model.jnt_limited[joint]]
        name = model.joint(joint).name.removeprefix(prefix)
        # MuJoCo has the body where the joint is at its reference position, and URDF where it is 0.
        axis, back = model.jnt_axis[joint], -model.qpos0[model.jnt_qposadr[joint]]
        turn_m, turn = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
            turn_m = back * axis
        else:
            mujoco.mju_axisAngle2Quat(turn, axis, back)
        position_m, quaternion = _composed(position_m, quaternion, turn_m, turn)
    element = SubElement(robot, "joint", name=name, type=kind)
    SubElement(element, "parent", link=parent.removeprefix(prefix))
    SubElement(element, "child", link=child.removeprefix(prefix))
    _add_origin(element, position_m, quaternion)
    if joint >= 0:
        SubElement(element, "axis", xyz=_text(model.jnt_axis[joint]))
    if kind in ("revolute", "prismatic"):
        low, high = model.jnt_range[joint]
        limits = {"lower": f"{low:.9g}", "upper": f"{high:.9g}", "effort": "0", "velocity": "0"}
        SubElement(element, "limit", limits)


def _composed(
    first_m: np.ndarray, first: np.ndarray, second_m: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pose that follows from two poses, one after the other."""
    moved_m, moved = np.zeros(3), np.zeros(4)
    mujoco.mju_mulPose(moved_m, moved, first_m, first, second_m, second)
    return moved_m, moved


def _add_origin(element: Element, position_m: np.ndarray, quaternion_wxyz: np.ndarray) -> None:
    """Add a place and its angles about the fixed axes x, y and z."""
    w, x, y, z = quaternion_wxyz
    pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    if abs(pitch) > math.pi / 2 - 1e-6:  # roll and yaw turn about one axis
        roll, yaw = 2 * math.atan2(x, w), 0.0
    else:
        roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    angles = np.array([roll, pitch, yaw])
    SubElement(element, "origin", xyz=_text(position_m), rpy=_text(angles))


def _text(values: np.ndarray) -> str:
    return " ".join(f"{value:.9g}" for value in values)
