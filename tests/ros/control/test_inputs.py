"""The policy's inputs: what is done when a message comes, and what in the thread of the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from ttm.policy.errors import MalformedObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import EXECUTED_ACTION, load_contract
from ttm_policy.guards import require_frame_id
from ttm_policy.inputs import Inputs, from_message
from ttm_policy.messages import image_to_frame, ns_to_stamp, observation_messages

STAMP_NS = 10_000_000_000
CONTRACT = load_contract()


class Topics(Node):
    """Hands messages to subscriptions without any middleware."""

    def __init__(self) -> None:
        super().__init__("test_inputs", start_parameter_services=False)
        self.callbacks: dict[str, list[Any]] = {}

    def create_subscription(self, kind: Any, topic: str, callback: Any, qos: Any) -> Any:  # type: ignore[override]
        self.callbacks.setdefault(topic, []).append(callback)


@pytest.fixture
def topics() -> Iterator[Topics]:
    rclpy.init()
    node = Topics()
    yield node
    node.destroy_node()
    rclpy.shutdown()


def _inputs(topics: Topics) -> Inputs:
    return Inputs(topics, CONTRACT, SPEC, lockstep=True, on_message=lambda: None)


def _send(topics: Topics, values: Mapping[str, Any], *, cut: str = "") -> None:
    """Send all inputs with one stamp; of the images of the topic `cut` only the first bytes."""
    did = np.zeros(SPEC.action_size, np.float32)
    messages = observation_messages(
        CONTRACT, {**values, EXECUTED_ACTION: did}, ns_to_stamp(STAMP_NS)
    )
    for topic, message in messages.items():
        if topic == cut:
            message.data = message.data[:10]
        for receive in topics.callbacks[topic]:
            receive(message)


def test_frames_are_converted_by_who_asks_and_are_those_of_the_tick(
    topics: Topics, observations: list[Any]
) -> None:
    inputs = _inputs(topics)
    _send(topics, observations[0])
    observation = inputs.observation()
    assert not set(observation.values) & {camera.name for camera in SPEC.cameras}
    _send(topics, observations[1])  # it comes before the network sees the first one
    seen = {**observation.values, **observation.see()}
    assert set(seen) == set(observations[0])
    for name, values in observations[0].items():
        np.testing.assert_array_equal(seen[name], values)


def test_a_damaged_image_in_lockstep_is_refused_once(
    topics: Topics, observations: list[Any]
) -> None:
    inputs = _inputs(topics)
    _send(topics, observations[0], cut="head/image_raw")
    assert inputs.complete_stamp_ns() == STAMP_NS
    with pytest.raises(MalformedObservation, match="check the camera driver"):
        inputs.observation().see()
    inputs.refused_ns = STAMP_NS
    assert inputs.complete_stamp_ns() is None
    inputs.forget()
    _send(topics, observations[0])
    assert inputs.complete_stamp_ns() == STAMP_NS


def test_a_tick_that_waits_for_a_frame_outlives_a_reset(
    topics: Topics, observations: list[Any]
) -> None:
    """At each message it is asked for the frames, and after a reset they come one after the other."""
    asked: list[dict[str, int]] = []
    inputs = Inputs(
        topics, CONTRACT, SPEC, lockstep=False, on_message=lambda: asked.append(inputs.frames())
    )
    _send(topics, observations[0])
    inputs.forget()
    assert inputs.frames() == {"head": -1, "wrist": -1}
    _send(topics, observations[0])
    assert inputs.frames() == asked[-1] == {"head": STAMP_NS, "wrist": STAMP_NS}


def test_of_unknown_joints_a_few_are_remembered(topics: Topics, observations: list[Any]) -> None:
    inputs = _inputs(topics)
    _send(topics, observations[0])
    for number in range(3):
        names = [f"stranger {number} {joint}" for joint in range(50_000)]
        for receive in topics.callbacks["joint_states"]:
            receive(JointState(name=[*names, "x" * 5_000_000], position=[0.0] * 50_001))
    for joints in inputs._joints.values():
        names = list(joints.merged().name)
        assert len(names) < 100
        assert max(map(len, names)) < 100
    values = inputs.observation().values["joint_positions"]
    np.testing.assert_array_equal(values, observations[0]["joint_positions"])


def test_a_joint_that_is_twice_in_a_message_tells_nothing(
    topics: Topics, observations: list[Any]
) -> None:
    inputs = _inputs(topics)
    _send(topics, observations[0])
    (source,) = (s for s in CONTRACT.vectors if s.name == "joint_positions")
    joint, receive = source.fields[0].path, topics.callbacks["joint_states"][0]
    receive(JointState(name=[joint, joint], position=[0.1, 0.2]))
    with pytest.raises(MalformedObservation, match=f"'{joint}' is twice in a message"):
        inputs.observation()
    _send(topics, observations[0])
    assert inputs.observation()


def test_what_is_said_of_a_strangers_texts_is_short_and_printable() -> None:
    long = "\x1b[2J" + "x" * 5_000_000
    source = CONTRACT.images[0]
    image, wanted = Image(encoding=long), replace(source, frame_id="head")
    image.header.frame_id = long
    calls: list[Callable[[], object]] = [
        lambda: image_to_frame(image, source, SPEC.cameras[0]),
        lambda: require_frame_id(image, wanted),
        lambda: from_message(SPEC, JointState(name=[long])),
    ]
    for call in calls:
        with pytest.raises(MalformedObservation) as refused:
            call()
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 800


def test_what_is_waited_for_tells_topics_that_nobody_publishes(
    topics: Topics, observations: list[Any]
) -> None:
    inputs = _inputs(topics)
    assert inputs.waits_for().endswith("executed action (/executed_action); nobody publishes them")
    for topic in ("wrist/image_raw", "joint_states", "ee_pose", "odom", "executed_action"):
        topics.create_publisher(JointState, topic, 10)
    said = inputs.waits_for()
    assert said.startswith("nothing received yet from: head (/head/image_raw), wrist (/wrist")
    assert said.endswith("nobody publishes /head/image_raw")
    topics.create_publisher(JointState, "head/image_raw", 10)
    assert "it is published: check its type" in inputs.waits_for()
    _send(topics, observations[0])
    assert not inputs.waits_for()


def test_joints_of_several_publishers_wait_for_each_other() -> None:
    """On a busy computer the messages of both come before the node takes one, again and again."""
    rclpy.init()
    node = Node("test_inputs")
    inputs = Inputs(node, CONTRACT, SPEC, lockstep=False, on_message=lambda: None)
    arm, base = (node.create_publisher(JointState, "joint_states", 10) for _ in range(2))
    for number in range(3):
        for publisher, name in ((arm, "elbow"), (base, "wheel")):
            message = JointState(name=[name], position=[float(number)])
            message.header.stamp = ns_to_stamp(STAMP_NS + number)
            publisher.publish(message)
    deadline_s = time.monotonic() + 60.0
    merged = inputs._joints["joint_positions"].merged
    while sorted(merged().name) != ["elbow", "wheel"] or list(merged().position) != [2.0, 2.0]:
        assert time.monotonic() < deadline_s, merged()
        rclpy.spin_once(node, timeout_sec=0.05)
    node.destroy_node()
    rclpy.shutdown()
