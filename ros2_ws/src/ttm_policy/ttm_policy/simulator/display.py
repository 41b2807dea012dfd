"""Shows the simulated robot to visualisers: URDF, transforms, camera parameters, and odometry's pose."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Quaternion, TransformStamped, Vector3
from geometry_msgs.msg import Pose as PoseMessage
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import String

from ttm.policy.spec import CameraSpec, PolicySpec
from ttm.sim.environment import ODOMETRY_FRAME, Env, Pose, RobotView, camera_frame, robot_view_of
from ttm_policy.contract import ImageSource, RobotContract, VectorSource
from ttm_policy.qos import LATCHED, TRANSFORMS

TF2_MSGS = "tf2_msgs"
"""The package of the messages on `/tf`, a part of every ROS 2 install, but not of its wheels."""


def transform_message() -> Any:
    """Return the type of the messages on `/tf`, or None if its package is not installed."""
    return import_module(f"{TF2_MSGS}.msg").TFMessage if find_spec(TF2_MSGS) is not None else None


class RobotDisplay:
    """Publishes what an environment's `RobotView` tells. Without one it only names frames.

    Transforms need the package tf2_msgs, a part of every ROS 2 install.
    """

    def __init__(self, node: Node, env: Env, spec: PolicySpec, contract: RobotContract):
        self._env, self._contract = env, contract
        self._cameras = {camera.name: camera for camera in spec.cameras}
        self._images = [s for s in contract.inputs if isinstance(s, ImageSource)]
        self._view = robot_view_of(env)
        self._info: dict[str, Publisher[CameraInfo]] = {}
        self._moving: Publisher[Any] | None = None
        self._static: Publisher[Any] | None = None
        if self._view is None:
            return
        description = node.create_publisher(String, "robot_description", LATCHED)
        description.publish(String(data=self._view.description()))
        self._info = {
            image.name: node.create_publisher(CameraInfo, info_topic(image.topic), LATCHED)
            for image in self._images
        }
        self._transforms = transform_message()
        if self._transforms is not None:
            self._moving = node.create_publisher(self._transforms, "/tf", TRANSFORMS)
            self._static = node.create_publisher(self._transforms, "/tf_static", LATCHED)

    def frame_of(self, source: ImageSource | VectorSource) -> str:
        """Return the frame of an input's header: the contract's, or else the simulator's own."""
        if source.frame_id:
            return source.frame_id
        if isinstance(source, ImageSource):
            return camera_frame(source.name)
        return ODOMETRY_FRAME if source.type == "nav_msgs/Odometry" else self._contract.base_frame

    def complete(self, message: Any, source: ImageSource | VectorSource) -> None:
        """Name the frames of an input, and add the pose to odometry that the contract leaves out."""
        message.header.frame_id = self.frame_of(source)
        if isinstance(source, ImageSource) or not isinstance(message, Odometry):
            return
        message.child_frame_id = self._contract.base_frame
        if self._view is not None and not any(f.path.startswith("pose.") for f in source.fields):
            pose = self._view.poses()[self._view.frames[0].name]
            message.pose.pose = _to_pose(pose)

    def begin_tick(self) -> None:
        """Look at the robot of the present episode, which may be in another scene."""
        self._view = robot_view_of(self._env)

    def publish(self, stamp: Time) -> None:
        """Publish the cameras' parameters and all transforms, as they are now."""
        if self._view is None:
            return
        for image in self._images:
            camera, fov_rad = self._cameras[image.name], self._view.camera_fov_rad[image.name]
            info = camera_info(camera, fov_rad)
            info.header.stamp, info.header.frame_id = stamp, self.frame_of(image)
            self._info[image.name].publish(info)
        if self._moving is not None and self._static is not None:
            transforms = self.transforms(self._view, stamp)
            self._moving.publish(self._transforms(transforms=transforms[True]))
            self._static.publish(self._transforms(transforms=transforms[False]))

    def transforms(self, view: RobotView, stamp: Time) -> dict[bool, list[TransformStamped]]:
        """Return the transforms of moving frames (True) and of fixed ones (False)."""
        poses = view.poses()
        names = {camera_frame(image.name): self.frame_of(image) for image in self._images}
        names[view.frames[0].name] = self._contract.base_frame
        found: dict[bool, list[TransformStamped]] = {True: [], False: []}
        for frame in view.frames:
            transform = _to_transform(poses[frame.name])
            transform.header.stamp = stamp
            transform.header.frame_id = names.get(frame.parent, frame.parent)
            transform.child_frame_id = names.get(frame.name, frame.name)
            found[frame.moves].append(transform)
        return found


def info_topic(image_topic: str) -> str:
    """Return where the parameters of a camera belong: `camera_info` beside its images.

    Compressed images are on a topic below that of the raw ones (image_transport).
    """
    raw = image_topic.removesuffix("/compressed")
    return "/".join([*raw.split("/")[:-1], "camera_info"])


def camera_info(camera: CameraSpec, vertical_fov_rad: float) -> CameraInfo:
    """Return the parameters of a camera without distortion and with square pixels."""
    height, width = camera.height, camera.width
    focal_px = height / 2 / math.tan(vertical_fov_rad / 2)
    x, y = (width - 1) / 2, (height - 1) / 2  # a pixel's middle has whole coordinates
    matrix = [focal_px, 0.0, x, 0.0, focal_px, y, 0.0, 0.0, 1.0]
    return CameraInfo(
        height=height,
        width=width,
        distortion_model="plumb_bob",
        d=[0.0] * 5,
        k=matrix,
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[*matrix[:3], 0.0, *matrix[3:6], 0.0, *matrix[6:], 0.0],
    )


def _quaternion(pose: Pose) -> Quaternion:
    x, y, z, w = (float(value) for value in pose.quaternion_xyzw)
    return Quaternion(x=x, y=y, z=z, w=w)


def _to_pose(pose: Pose) -> PoseMessage:
    x, y, z = map(float, pose.position_m)
    return PoseMessage(position=Point(x=x, y=y, z=z), orientation=_quaternion(pose))


def _to_transform(pose: Pose) -> TransformStamped:
    transform = TransformStamped()
    x, y, z = map(float, pose.position_m)
    transform.transform.translation = Vector3(x=x, y=y, z=z)
    transform.transform.rotation = _quaternion(pose)
    return transform
