"""What visualisers see of the simulated robot, made without any other process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from nav_msgs.msg import Odometry
from sensor_msgs.msg import CameraInfo

from ttm.policy import CameraSpec
from ttm.sim import KitchenEnv
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.messages import ns_to_stamp
from ttm_policy.simulator import robot as simulated
from ttm_policy.simulator.robot import RobotDisplay, camera_info, info_topic

STAMP = ns_to_stamp(5_000_000_000)


class Publishers:
    """Takes the place of a node, and keeps what is published."""

    def __init__(self) -> None:
        self.sent: dict[str, list[Any]] = {}

    def create_publisher(self, kind: Any, topic: str, qos: Any) -> Any:
        sent = self.sent.setdefault(topic, [])

        class Publisher:
            publish = sent.append

        return Publisher()


class Transforms:
    """Takes the place of TFMessage, which the wheels of ROS 2 do not have."""

    def __init__(self, transforms: list[Any]):
        self.transforms = transforms


@pytest.fixture
def env() -> Iterator[KitchenEnv]:
    env = KitchenEnv()
    env.reset(seed=3, options={"task": "pick"})
    env.step(np.array([0.04, -0.03, 0.02, 0.1, 0.05, -0.1, 0, 0.3, 0.5, 0], np.float32))
    yield env
    env.close()


@pytest.fixture
def shown(env: KitchenEnv, monkeypatch: pytest.MonkeyPatch) -> Publishers:
    monkeypatch.setattr(simulated, "transform_message", lambda: Transforms)
    node = Publishers()
    robot = RobotDisplay(node, env, SPEC, load_contract())  # type: ignore[arg-type]
    robot.publish(STAMP)
    return node


def test_transforms_lead_from_odom_to_every_link_of_the_description(shown: Publishers) -> None:
    moving, static = shown.sent["/tf"][0].transforms, shown.sent["/tf_static"][0].transforms
    parents = {t.child_frame_id: t.header.frame_id for t in (*moving, *static)}
    assert len(parents) == len(moving) + len(static)
    assert all(t.header.stamp == STAMP for t in (*moving, *static))
    robot = ElementTree.fromstring(shown.sent["robot_description"][0].data)
    for link in robot.findall("link"):
        frame = link.get("name")
        while frame != "odom":
            frame = parents[str(frame)]
    assert parents["base_link"] == "odom"
    assert {t.child_frame_id for t in moving} >= {"base_link", "elbow_flex_link"}


def test_camera_parameters_come_with_the_images(shown: Publishers) -> None:
    infos = shown.sent["head/camera_info"]
    assert [type(info) for info in infos] == [CameraInfo]
    assert infos[0].header.stamp == STAMP
    assert infos[0].header.frame_id == "head_optical_frame"
    assert shown.sent["wrist/camera_info"][0].header.frame_id == "wrist_optical_frame"


def test_a_camera_of_90_degrees_has_half_its_height_as_focal_length() -> None:
    info = camera_info(CameraSpec("head", 480, 640), np.pi / 2)
    assert (info.height, info.width) == (480, 640)
    np.testing.assert_allclose(info.k, [240, 0, 319.5, 0, 240, 239.5, 0, 0, 1])
    np.testing.assert_allclose(info.p, [240, 0, 319.5, 0, 0, 240, 239.5, 0, 0, 0, 1, 0])
    assert info_topic("head/image_raw") == "head/camera_info"
    assert info_topic("/front/color/image_raw/compressed") == "/front/color/camera_info"
    assert info_topic("image") == "camera_info"


def test_odometry_has_frames_and_the_pose_of_the_base(env: KitchenEnv) -> None:
    robot = RobotDisplay(Publishers(), env, SPEC, load_contract())  # type: ignore[arg-type]
    source = next(s for s in load_contract().inputs if s.type == "nav_msgs/Odometry")
    message = Odometry()
    robot.complete(message, source)  # type: ignore[arg-type]
    assert (message.header.frame_id, message.child_frame_id) == ("odom", "base_link")
    x, y, yaw = env.controller.base_pose()
    assert message.pose.pose.position.x == pytest.approx(x)
    assert message.pose.pose.position.y == pytest.approx(y)
    assert message.pose.pose.orientation.z == pytest.approx(np.sin(yaw / 2))
    robot.complete(message, replace(source, frame_id="world"))  # type: ignore[arg-type]
    assert message.header.frame_id == "world", "the contract's frame comes first"


def test_an_environment_without_a_view_shows_nothing(
    env: KitchenEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "robot_view_of", lambda env: None)
    node = Publishers()
    robot = RobotDisplay(node, env, SPEC, load_contract())  # type: ignore[arg-type]
    robot.publish(STAMP)
    assert node.sent == {}
