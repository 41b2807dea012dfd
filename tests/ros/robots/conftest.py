"""Robots made from the descriptions of their interfaces beside this file."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import torch
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from failing_robot import Spinning
from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from PIL import Image as PillowImage
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from ttm.policy import (
    PRESETS,
    ActionPart,
    CameraSpec,
    Policy,
    PolicySpec,
    ProprioceptionSpec,
    save_checkpoint,
)
from ttm_policy.qos import LATCHED

HERE = Path(__file__).parent
CONFIG = Path(__file__).parents[3] / "ros2_ws" / "src" / "ttm_policy" / "config"
PERIOD_S = 0.1
SENSOR = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)


class FakeRobot(Node):
    """Publishes and obeys what the description of a robot's interface says.

    Commands that a real controller would reject are kept in `rejected`, all others in `obeyed`.
    """

    def __init__(self, description: dict[str, Any], *, described: bool = True, deaf: str = ""):
        """described: whether `describe` is called at once. deaf: a topic that waits for `hear`."""
        super().__init__("fake_robot")
        self.obeyed: dict[str, list[Any]] = {}
        self.rejected: list[str] = []
        self.silent: set[str] = set()
        self.lag_s = 0.0
        self.positions = {name: 0.0 for group in description["joints"] for name in group}
        self._description, self._rng = description, np.random.default_rng(0)
        self._out = {
            topic: self.create_publisher(
                {"Image": Image}.get(image["type"], CompressedImage), topic, SENSOR
            )
            for topic, image in description["images"].items()
        }
        self._odometry = self.create_publisher(Odometry, description["odometry"]["topic"], 10)
        self._joints = [
            self.create_publisher(JointState, "/joint_states", 10) for _ in description["joints"]
        ]
        self._urdf = self.create_publisher(String, "/robot_description", LATCHED)
        if described:
            self.describe()
        for topic, twist in description["twists"].items():
            kind = {"Twist": Twist}.get(twist["type"], TwistStamped)
            self._listen(kind, topic, self._twist_fault, twist)
        for topic in description["trajectories"]:
            self.obeyed[topic] = []
            if topic != deaf:
                self.hear(topic)
        self.diagnosis = "none"
        self.create_subscription(DiagnosticArray, "/diagnostics", self._diagnose, 10)
        self.create_timer(PERIOD_S, self.publish)

    def describe(self) -> None:
        """Publish the URDF, which those get as well who come later."""
        self._urdf.publish(String(data=self._description["description"]))

    def hear(self, topic: str) -> None:
        """Start a controller of joints."""
        joints = self._description["trajectories"][topic]
        self._listen(JointTrajectory, topic, self._trajectory_fault, joints)

    def _diagnose(self, message: DiagnosticArray) -> None:
        """Keep what the policy says of itself, for the errors of these tests."""
        self.diagnosis = message.status[0].message

    def _listen(self, kind: Any, topic: str, fault: Callable[[Any, Any], str], about: Any) -> None:
        self.obeyed.setdefault(topic, [])

        def receive(message: Any) -> None:
            if problem := fault(message, about):
                self.rejected.append(f"{topic}: {problem}")
                return
            self.obeyed[topic].append(message)
            if isinstance(message, JointTrajectory):
                self.positions.update(
                    zip(message.joint_names, message.points[0].positions, strict=True)
                )

        self.create_subscription(kind, topic, receive, 10)

    @staticmethod
    def _twist_fault(message: Any, about: dict[str, Any]) -> str:
        if "frame_id" in about and message.header.frame_id != about["frame_id"]:
            return f"frame {message.header.frame_id}"
        twist = getattr(message, "twist", message)
        for part in ("linear", "angular"):
            for axis in "xyz":
                number = getattr(getattr(twist, part), axis)
                if not abs(number) <= (about["fastest"] if axis in about[part] else 0.0):
                    return f"{part}.{axis} is {number}"
        return ""

    def _trajectory_fault(self, message: JointTrajectory, joints: list[str]) -> str:
        """joint_trajectory_controller refuses other joints, and points without a time or a value."""
        if sorted(message.joint_names) != sorted(joints):
            return f"joints {message.joint_names}"
        point = message.points[-1]
        reach = point.time_from_start
        if len(point.positions) != len(joints) or reach.sec + reach.nanosec == 0:
            return f"point {point}"
        return "" if np.isfinite(point.positions).all() else "not finite"

    def publish(self) -> None:
        """Publish all sensors once."""
        stamp = (self.get_clock().now() - rclpy.duration.Duration(seconds=self.lag_s)).to_msg()
        for topic, image in self._description["images"].items():
            if topic not in self.silent:
                self._out[topic].publish(self._image(image, stamp))
        for publisher, names in zip(self._joints, self._description["joints"], strict=True):
            if self.silent & set(names):
                continue
            state = JointState(name=names, position=[self.positions[name] for name in names])
            state.header.stamp = stamp
            publisher.publish(state)
        odometry = Odometry()
        odometry.header.stamp = stamp
        odometry.header.frame_id = self._description["odometry"]["frame_id"]
        self._odometry.publish(odometry)

    def _image(self, about: dict[str, Any], stamp: Any) -> Any:
        height, width = about["height"], about["width"]
        pixels = self._rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if about["type"] == "Image":
            message = Image(height=height, width=width, encoding=about["encoding"], step=3 * width)
            message.data = pixels.tobytes()
        else:
            buffer = io.BytesIO()
            PillowImage.fromarray(pixels).save(buffer, format="JPEG")
            message = CompressedImage(format="jpeg", data=buffer.getvalue())
        message.header.stamp, message.header.frame_id = stamp, about["frame_id"]
        return message

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait until something that another thread brings about."""
        deadline_s = time.monotonic() + 120.0
        while not done():
            assert time.monotonic() < deadline_s, (
                f"waited in vain for {what}; the policy says: {self.diagnosis}; obeyed: "
                f"{ {topic: len(got) for topic, got in self.obeyed.items()} }; "
                f"rejected: {self.rejected[:3]}"
            )
            time.sleep(0.02)


Start = Callable[..., FakeRobot]


@pytest.fixture
def start_robot() -> Iterator[Start]:
    """Start the robot of a name, spun by a thread. change: edits its description; given: see FakeRobot."""
    rclpy.init()
    spinning, robots = Spinning(), list[FakeRobot]()

    def start(
        name: str, change: Callable[[dict[str, Any]], object] = lambda _: None, **given: Any
    ) -> FakeRobot:
        description = yaml.safe_load((HERE / f"{name}.yaml").read_text())
        change(description)
        robots.append(FakeRobot(description, **given))
        spinning.add(robots[-1])
        return robots[-1]

    yield start
    spinning.end()
    for robot in robots:
        robot.destroy_node()
    rclpy.shutdown()


def _vector(name: str, size: int) -> ProprioceptionSpec:
    return ProprioceptionSpec(name, tuple(f"{name} {i}" for i in range(size)))


SPECS = {
    "fetch": PolicySpec(
        "fetch",
        (CameraSpec("head", 64, 64),),
        (_vector("joint_positions", 9), _vector("base_velocity", 2)),
        (
            ActionPart("arm_translation", 3, "m/tick", low=-0.05, high=0.05),
            ActionPart("arm_rotation", 3, "rad/tick", low=-0.15, high=0.15),
            ActionPart("gripper", 1, "1 open, 0 closed", "binary", 0.0, 1.0),
            ActionPart("base", 2, "m/s, rad/s", low=-0.8, high=0.8),
        ),
        rate_hz=5.0,
    ),
    "turtlebot_arm": PolicySpec(
        "turtlebot_arm",
        (CameraSpec("front", 64, 64), CameraSpec("wrist", 64, 64)),
        (_vector("joint_positions", 7), _vector("base_velocity", 2)),
        (
            ActionPart("arm", 6, "rad"),
            ActionPart("gripper", 1, "1 open, 0 closed", "binary", 0.0, 1.0),
            ActionPart("base", 2, "m/s, rad/s", low=-0.8, high=0.8),
        ),
        rate_hz=5.0,
    ),
}


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of an untrained tiny policy for a robot, whose actions fill their whole range."""

    def make(name: str) -> Path:
        torch.manual_seed(0)
        policy = Policy(SPECS[name], PRESETS["tiny"])
        policy.known_instructions = {"go": np.full(384, 0.05, np.float32)}
        path = tmp_path_factory.mktemp(name) / "tiny.safetensors"
        save_checkpoint(path, policy, {})
        return path

    return make


@pytest.fixture(scope="session")
def config() -> Path:
    """The folder of the contracts that ship with the project."""
    return CONFIG
