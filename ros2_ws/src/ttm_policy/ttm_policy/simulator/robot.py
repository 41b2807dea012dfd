"""The ROS node of a simulated robot: it publishes observations, shows the robot, and receives commands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Quaternion, TransformStamped, Vector3
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.publisher import Publisher
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Float32MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from ttm.policy.errors import UserError
from ttm.policy.spec import CameraSpec, PolicySpec
from ttm.sim.environment import ODOMETRY_FRAME, Env, RobotView, camera_frame, robot_view_of, spec_of
from ttm_policy.contract import (
    EXECUTED_ACTION,
    MOTION_TYPES,
    ImageSource,
    RobotContract,
    load_contract,
)
from ttm_policy.inputs import WARN_EVERY_S, Vector
from ttm_policy.messages import (
    CommandCodec,
    Source,
    check_fields,
    input_types,
    ns_to_stamp,
    observation_messages,
    stamp_to_ns,
)
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import LATCHED, NEWEST, TRANSFORMS

Observation = Mapping[str, npt.NDArray[Any]]
COMMAND_TIMEOUT_S = 0.3
"""Simulated time after which a twist expires, as on base controllers and MoveIt Servo. Half a second
after the last command the odometry of a base that is simulated in ticks of 0.2 s says that it stands."""
FIRST_STAMP_NS = 1_000_000_000
"""Simulated time at the start. ROS takes 0 for a clock that has not been received yet."""
TF2_MSGS = "tf2_msgs"
"""The package of the messages on `/tf`, a part of every ROS 2 install, but not of its wheels."""


class ReceivedCommands:
    """Receives all commands of a `CommandCodec`. `now_s` is the simulated time as published last."""

    def __init__(self, node: Node, codec: CommandCodec, *, lockstep: bool):
        self._node, self._codec = node, codec
        self._expected_ns = 0
        self._answers: dict[str, Any] = {}
        self._newest: dict[str, tuple[Any, float]] = {}
        self.now_s = 0.0
        self.resting = np.zeros(codec.spec.action_size, np.float32)
        """(A,), the action that leaves the robot in its place, for parts without a command in force."""
        qos = LATCHED if lockstep else NEWEST
        for topic, kind in codec.types().items():
            node.create_subscription(kind, topic, partial(self._receive, topic), qos)

    def _receive(self, topic: str, message: Any) -> None:
        try:
            self._codec.decode({topic: message})
        except UserError as error:
            said = f"{error}; it is not carried out"
            self._node.get_logger().warning(said, throttle_duration_sec=WARN_EVERY_S)
            return
        self._newest[topic] = message, self.now_s
        # Messages without a stamp (Twist, Bool) are sent once per tick: the next is the answer.
        stamped = hasattr(message, "header")
        if not stamped or stamp_to_ns(message.header.stamp) == self._expected_ns:
            self._answers[topic] = message

    def expect(self, stamp_ns: int) -> None:
        """Accept only commands for the observation of this stamp as answers from now on."""
        self._answers.clear()
        self._expected_ns = stamp_ns

    def missing(self) -> list[str]:
        """Return the topics on which the answer has not arrived."""
        return [topic for topic in self._codec.sinks if topic not in self._answers]

    def answer(self) -> Vector:
        """Return the complete action (A,) that answers the expected observation."""
        return self._codec.decode(self._answers)

    def in_force(self) -> Vector:
        """Return the action (A,) that a robot would carry out now: all but goals of joints expire."""
        alive = {
            topic: message
            for topic, (message, received_s) in self._newest.items()
            if isinstance(message, JointTrajectory) or self.now_s - received_s <= COMMAND_TIMEOUT_S
        }
        return self._codec.decode(alive, self.resting)

    def standing_still(self) -> Vector:
        """Return the action (A,) of velocities 0, which leaves all joints where they were sent."""
        action = self.in_force()
        for sink in (sink for sinks in self._codec.sinks.values() for sink in sinks):
            if sink.type in MOTION_TYPES:
                action[self._codec.spec.action_slices[sink.name]] = 0.0
        return action


class RobotTopics(Node):
    """Publishes observations, the clock and the instruction, and gets commands."""

    parameters: SimParameters
    spec: PolicySpec

    def connect_topics(self, contract: RobotContract, spec: PolicySpec, *, whose: str) -> None:
        """Create all topics. Raises `UserError` if the contract does not fit `spec`, which is of `whose`."""
        check_fields(contract)
        contract.check(spec, whose=whose)
        self.spec, self._contract, self.time_ns = spec, contract, FIRST_STAMP_NS
        self._sensors = {
            topic: self.create_publisher(kind, topic, LATCHED)
            for topic, kind in input_types(contract).items()
        }
        codec = CommandCodec(contract, spec, cmd_vel_stamped=self.parameters.cmd_vel_stamped)
        self.commands = ReceivedCommands(self, codec, lockstep=self.parameters.lockstep)
        self._time = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)

    def next_time_ns(self) -> int:
        """Return the time of the next observation in ns: one tick after the last."""
        return self.time_ns + round(self.spec.control_dt_s * 1e9)

    def publish_observation(self, observation: Observation, executed: Vector, time_ns: int) -> None:
        """Publish all inputs with one stamp, and then the clock. executed: (A,), since the last one."""
        self.time_ns = time_ns
        values = {**observation, EXECUTED_ACTION: executed}
        stamp = ns_to_stamp(time_ns)
        messages = observation_messages(self._contract, values, stamp, complete=self._complete)
        for topic, message in messages.items():
            self._sensors[topic].publish(message)
        # The clock comes last: it triggers the policy's tick, which must see this observation.
        self.publish_clock(time_ns)

    def _complete(self, message: Any, source: Source) -> None:
        message.header.frame_id = source.frame_id or self._contract.base_frame

    def publish_clock(self, time_ns: int) -> None:
        """Publish the time, which also decides when a command expires."""
        self.commands.now_s = time_ns * 1e-9
        self._time.publish(Clock(clock=ns_to_stamp(time_ns)))

    def publish_instruction(self, text: str) -> None:
        """Publish the instruction, which late subscribers receive too."""
        self._instruction.publish(String(data=text))

    def say(self, text: str) -> None:
        """Print a line without delay."""
        print(text, flush=True)


class SimNode(RobotTopics):
    """Publishes observations on the topics of a contract, and collects the commands."""

    def __init__(self) -> None:
        """Declare and read the parameters. Raises `UserError` if one is out of range."""
        super().__init__("sim_node")
        declare_parameters(self, SimParameters)
        self.parameters = read_parameters(self, SimParameters)
        self.memory = np.zeros(0, dtype=np.float32)

    def connect(self, env: Env) -> None:
        """Create all topics for `env`. Raises `UserError` if the contract does not fit it."""
        contract = load_contract(self.parameters.contract)
        self.connect_topics(contract, spec_of(env), whose="the simulator")
        self._display = RobotDisplay(self, env, self.spec, contract)
        self._episode = self.create_publisher(String, "~/episode", LATCHED)
        memory = f"{self.parameters.policy_node}/memory"
        self.create_subscription(Float32MultiArray, memory, self._on_memory, LATCHED)

    def _on_memory(self, message: Float32MultiArray) -> None:
        self.memory = np.array(message.data, dtype=np.float32)

    def describe_memory(self) -> str:
        """Return the number of memory writes in this episode and the norm of the memory."""
        writes = self.memory[0] if self.memory.size else 0
        norm = np.linalg.norm(self.memory[1:])
        return f"memory writes {writes:4.0f}  norm {norm:8.3f}"

    def publish_observation(self, observation: Observation, executed: Vector, time_ns: int) -> None:
        self._display.publish(ns_to_stamp(time_ns))
        super().publish_observation(observation, executed, time_ns)

    def _complete(self, message: Any, source: Source) -> None:
        self._display.complete(message, source)

    def publish_episode(self, info: Mapping[str, Any]) -> None:
        """Publish the state of the episode as JSON on `~/episode`."""
        self._episode.publish(String(data=episode_json(info)))


def episode_json(info: Mapping[str, Any]) -> str:
    """Return an `info` as JSON, with lists and numbers for those of NumPy, and text for what is unknown."""
    return json.dumps(
        dict(info),
        default=lambda v: v.tolist() if isinstance(v, np.ndarray | np.generic) else str(v),
    )


def transform_message() -> Any:
    """Return the type of the messages on `/tf`, or None if its package is not installed."""
    return import_module(f"{TF2_MSGS}.msg").TFMessage if find_spec(TF2_MSGS) is not None else None


class RobotDisplay:
    """Shows the robot of an environment's `RobotView` to visualisers; without one, it names frames."""

    def __init__(self, node: Node, env: Env, spec: PolicySpec, contract: RobotContract):
        self._env, self._contract = env, contract
        self._cameras = {camera.name: camera for camera in spec.cameras}
        self._images = [s for s in contract.inputs if isinstance(s, ImageSource)]
        self._view = robot_view_of(env)
        self._info: dict[str, Publisher[CameraInfo]] = {}
        self._transforms: dict[bool, Publisher[Any]] = {}
        """Whether frames move -> the publisher of their transforms."""
        if self._view is None:
            return
        description = node.create_publisher(String, "robot_description", LATCHED)
        description.publish(String(data=self._view.description()))
        self._info = {
            image.name: node.create_publisher(CameraInfo, info_topic(image.topic), LATCHED)
            for image in self._images
        }
        self._kind = transform_message()
        if self._kind is not None:
            self._transforms[True] = node.create_publisher(self._kind, "/tf", TRANSFORMS)
            self._transforms[False] = node.create_publisher(self._kind, "/tf_static", LATCHED)

    def frame_of(self, source: Source) -> str:
        """Return the frame of an input's header: the contract's, or else the simulator's own."""
        if source.frame_id:
            return source.frame_id
        if isinstance(source, ImageSource):
            return camera_frame(source.name)
        return ODOMETRY_FRAME if source.type == "nav_msgs/Odometry" else self._contract.base_frame

    def complete(self, message: Any, source: Source) -> None:
        """Name the frames of an input, and add the pose to odometry that the contract leaves out."""
        message.header.frame_id = self.frame_of(source)
        if isinstance(source, ImageSource) or not isinstance(message, Odometry):
            return
        message.child_frame_id = self._contract.base_frame
        if self._view is not None and not any(f.path.startswith("pose.") for f in source.fields):
            pose = self._view.poses()[self._view.frames[0].name]
            message.pose.pose.position = Point(**_xyz(pose.position_m))
            message.pose.pose.orientation = Quaternion(**_xyz(pose.quaternion_xyzw))

    def publish(self, stamp: Time) -> None:
        """Publish the cameras' parameters and all transforms, of the scene as it is now."""
        self._view = robot_view_of(self._env)
        if self._view is None:
            return
        for image in self._images:
            camera, fov_rad = self._cameras[image.name], self._view.camera_fov_rad[image.name]
            info = camera_info(camera, fov_rad)
            info.header.stamp, info.header.frame_id = stamp, self.frame_of(image)
            self._info[image.name].publish(info)
        found = self._find_transforms(self._view, stamp)
        for moves, publisher in self._transforms.items():
            publisher.publish(self._kind(transforms=found[moves]))

    def _find_transforms(self, view: RobotView, stamp: Time) -> dict[bool, list[TransformStamped]]:
        """Return the transforms of moving frames (True) and of fixed ones (False)."""
        poses = view.poses()
        names = {camera_frame(image.name): self.frame_of(image) for image in self._images}
        names[view.frames[0].name] = self._contract.base_frame
        found: dict[bool, list[TransformStamped]] = {True: [], False: []}
        for frame in view.frames:
            pose, transform = poses[frame.name], TransformStamped()
            transform.transform.translation = Vector3(**_xyz(pose.position_m))
            transform.transform.rotation = Quaternion(**_xyz(pose.quaternion_xyzw))
            transform.header.stamp = stamp
            transform.header.frame_id = names.get(frame.parent, frame.parent)
            transform.child_frame_id = names.get(frame.name, frame.name)
            found[frame.moves].append(transform)
        return found


def info_topic(image_topic: str) -> str:
    """Return the topic `camera_info` beside that of raw images; compressed ones are a level below it."""
    raw = image_topic.removesuffix("/compressed")
    return "/".join([*raw.split("/")[:-1], "camera_info"])


def camera_info(camera: CameraSpec, vertical_fov_rad: float) -> CameraInfo:
    """Return the parameters of a camera without distortion and with square pixels."""
    height, width = camera.height, camera.width
    focal_px = height / 2 / math.tan(vertical_fov_rad / 2)
    x, y = (width - 1) / 2, (height - 1) / 2  # a pixel's middle has whole coordinates
    matrix = np.array([[focal_px, 0.0, x], [0.0, focal_px, y], [0.0, 0.0, 1.0]])
    info = CameraInfo(height=height, width=width, distortion_model="plumb_bob", d=[0.0] * 5)
    info.k, info.r = matrix.ravel(), np.eye(3).ravel()
    info.p = np.column_stack([matrix, np.zeros(3)]).ravel()
    return info


def _xyz(values: npt.ArrayLike) -> dict[str, float]:
    """Return the fields of a message by their names, of a vector (3,) or a quaternion (4,)."""
    return dict(zip("xyzw", map(float, np.asarray(values)), strict=False))
