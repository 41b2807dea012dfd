"""The policy's inputs: what is done when a message comes, and what in the thread of the network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import JointState

from ttm.policy.errors import MalformedObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import ns_to_stamp
from ttm_policy.contract.robot_contract import EXECUTED_ACTION
from ttm_policy.inputs.inputs import Inputs
from ttm_policy.sensors.observation_messages import observation_messages

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
