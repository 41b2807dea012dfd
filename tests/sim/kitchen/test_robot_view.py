"""The robot's frames and its URDF describe the robot that MuJoCo simulates."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import gymnasium
import mujoco
import numpy as np
import pytest

from ttm.sim import KitchenEnv
from ttm.sim.environment import ODOMETRY_FRAME, Pose, camera_frame, robot_view_of
from ttm.sim.kitchen import fetch

Matrix = np.ndarray


@pytest.fixture
def env(kitchen: KitchenEnv) -> KitchenEnv:
    """An episode in which base, arm and gripper have moved."""
    kitchen.reset(seed=3, options={"task": "pick"})
    for _ in range(2):
        kitchen.step(np.array([0.04, -0.03, 0.02, 0.1, 0.05, -0.1, 0, 0.3, 0.5, 0], np.float32))
    return kitchen


def _matrix(pose: Pose) -> Matrix:
    matrix, rotation = np.eye(4), np.zeros(9)
    mujoco.mju_quat2Mat(rotation, pose.quaternion_xyzw[[3, 0, 1, 2]])
    matrix[:3, :3], matrix[:3, 3] = rotation.reshape(3, 3), pose.position_m
    return matrix


def _rotation(axis: np.ndarray, angle_rad: float) -> Matrix:
    matrix, quaternion, rotation = np.eye(4), np.zeros(4), np.zeros(9)
    mujoco.mju_axisAngle2Quat(quaternion, axis, angle_rad)
    mujoco.mju_quat2Mat(rotation, quaternion)
    matrix[:3, :3] = rotation.reshape(3, 3)
    return matrix


def _origin(element: ElementTree.Element) -> Matrix:
    origin = element.find("origin")
    assert origin is not None
    roll, pitch, yaw = np.fromstring(origin.get("rpy", ""), sep=" ")
    matrix = np.eye(4)
    matrix[:3, 3] = np.fromstring(origin.get("xyz", ""), sep=" ")
    x, y, z = np.eye(3)
    return matrix @ _rotation(z, yaw) @ _rotation(y, pitch) @ _rotation(x, roll)


def _motion(joint: ElementTree.Element, value: float) -> Matrix:
    axis = joint.find("axis")
    if axis is None:
        return np.eye(4)
    direction = np.fromstring(axis.get("xyz", ""), sep=" ")
    if joint.get("type") in ("revolute", "continuous"):
        return _rotation(direction, value)
    matrix = np.eye(4)
    matrix[:3, 3] = value * direction
    return matrix


def test_the_chain_of_frames_leads_to_where_the_bodies_are(env: KitchenEnv) -> None:
    view = env.robot_view()
    poses, world = view.poses(), {ODOMETRY_FRAME: np.eye(4)}
    for frame in view.frames:  # parents stand before their children
        world[frame.name] = world[frame.parent] @ _matrix(poses[frame.name])
    assert set(world) == {ODOMETRY_FRAME, *poses}
    for name in ("base_link", "gripper_link", "l_gripper_finger_link", "head_tilt_link"):
        body = env.data.body(fetch.PREFIX + name)
        np.testing.assert_allclose(world[name][:3, 3], body.xpos, atol=1e-9)
        np.testing.assert_allclose(world[name][:3, :3], body.xmat.reshape(3, 3), atol=1e-9)


def test_the_urdf_moves_its_links_as_mujoco_does(env: KitchenEnv) -> None:
    view, robot = env.robot_view(), ElementTree.fromstring(env.robot_view().description())
    poses = view.poses()
    joints = robot.findall("joint")
    assert len(joints) == len(robot.findall("link")) - 1
    for joint in joints:
        child = joint.find("child").get("link")  # type: ignore[union-attr]
        fixed = joint.get("type") == "fixed"
        value = 0.0 if fixed else env.data.joint(fetch.PREFIX + joint.get("name", "")).qpos[0]
        expected = _matrix(poses[str(child)])
        np.testing.assert_allclose(_origin(joint) @ _motion(joint, value), expected, atol=1e-6)
    moving = {frame.name for frame in view.frames[1:] if frame.moves}
    assert len(moving) == sum(joint.get("type") != "fixed" for joint in joints) == 12


def test_meshes_are_drawn_where_mujoco_has_them(env: KitchenEnv) -> None:
    model, robot = env.model, ElementTree.fromstring(env.robot_view().description())
    drawn = 0
    for link in robot.findall("link"):
        body = model.body(fetch.PREFIX + link.get("name", "")).id
        geoms = range(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body])
        for geom, visual in zip(geoms, link.findall("visual"), strict=True):
            mesh = visual.find("geometry/mesh")
            if mesh is None:
                continue
            points = _stl_points(Path(mesh.get("filename", "").removeprefix("file://")))
            points = points @ _origin(visual)[:3, :3].T + _origin(visual)[:3, 3]
            number = model.geom_dataid[geom]
            first = model.mesh_vertadr[number]
            vertices = model.mesh_vert[first : first + model.mesh_vertnum[number]]
            place = _matrix(Pose(model.geom_pos[geom], model.geom_quat[geom][[1, 2, 3, 0]]))
            vertices = vertices @ place[:3, :3].T + place[:3, 3]
            np.testing.assert_allclose(points.min(0), vertices.min(0), atol=1e-4)
            np.testing.assert_allclose(points.max(0), vertices.max(0), atol=1e-4)
            drawn += 1
    assert drawn >= 15


def _stl_points(path: Path) -> np.ndarray:
    """The corners (N, 3) of all triangles of a binary STL file."""
    record = np.dtype([("normal", "<3f4"), ("points", "<9f4"), ("attribute", "<u2")])
    return np.frombuffer(path.read_bytes(), record, offset=84)["points"].reshape(-1, 3)


def test_an_optical_frame_looks_along_z_with_y_down(env: KitchenEnv) -> None:
    view = env.robot_view()
    pose = {frame.name: frame.parent for frame in view.frames}
    assert pose[camera_frame("wrist")] == "gripper_link"
    rotation = _matrix(view.poses()[camera_frame("wrist")])[:3, :3]
    assert rotation[0, 2] > 0.9, "the wrist camera looks along the gripper's x"
    assert rotation[2, 1] < -0.9, "the picture's down is the gripper's down"
    assert view.camera_fov_rad == pytest.approx({"head": np.deg2rad(56), "wrist": np.deg2rad(65)})


def test_an_environment_need_not_have_a_view(env: KitchenEnv) -> None:
    assert robot_view_of(env) is not None
    assert robot_view_of(gymnasium.Env()) is None
