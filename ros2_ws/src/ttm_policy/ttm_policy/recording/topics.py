"""Subscribes to all topics of a contract, and passes on every message with its stamp."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from ttm.policy.errors import UserError
from ttm_policy.contract.conversions import MESSAGE_TYPES
from ttm_policy.inputs.topic_text import WARN_EVERY_S
from ttm_policy.publishers import LossCounter, MessageInfo
from ttm_policy.recording.stamps import Stamper, header_ns
from ttm_policy.recording.tick_values import JointTopics

DEPTH = 200
"""So many messages of a topic may wait while another one is handled."""

UPDATE_S = 0.2
"""Wall time between two looks at the publishers."""

Qos = tuple[ReliabilityPolicy, DurabilityPolicy]
FIRST_QOS: Qos = (ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
"""That of commands before there is a publisher."""


class RecordedTopics:
    """Receives the messages of all topics as they were serialised, so that taking one is quick.

    The QoS follows that of the publishers: reliable if all are, and with what was published before if all
    keep it, as a simulator in lockstep does. Commands are subscribed to before there is a publisher.

    Parameters
    ----------
    node
        Makes the subscriptions.
    types
        Topic -> message type.
    observed
        The topics of the observation. Their stamps tell what time it is in simulation.
    joints
        Completes messages with some of the joints.
    stamper
        Takes every message.
    on_loss
        Called with a topic and the number of its messages that were published and never arrived.
    """

    def __init__(
        self,
        node: Node,
        types: Mapping[str, str],
        observed: frozenset[str],
        joints: JointTopics,
        stamper: Stamper,
        on_loss: Callable[[str, int], None],
    ) -> None:
        self._node, self._types, self._observed = node, types, observed
        self._joints, self._stamper, self._on_loss = joints, stamper, on_loss
        self._losses = LossCounter()
        self._newest: dict[str, bytes] = {}
        self._qos: dict[str, Qos] = {}
        self._subscriptions: dict[str, Subscription[Any]] = {}
        for topic in types.keys() - observed:
            self._subscribe(topic, FIRST_QOS)
        self._updated_s = -math.inf
        self.update()

    def update(self) -> None:
        """Subscribe again where the publishers' QoS has changed. This may be called at any rate."""
        if time.monotonic() - self._updated_s < UPDATE_S:
            return
        self._updated_s = time.monotonic()
        for topic in self._types:
            publishers = self._node.get_publishers_info_by_topic(topic)
            offered = [publisher.qos_profile for publisher in publishers]
            if offered and (qos := _qos_for(offered)) != self._qos.get(topic):
                self._subscribe(topic, qos)

    def newest(self, topic: str) -> Any:
        """Return the newest message of a topic that was received. Raises `UserError` if it is damaged."""
        return _unpacked(topic, self._newest[topic], self._types[topic])

    def close(self) -> None:
        """Destroy all subscriptions."""
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _subscribe(self, topic: str, qos: Qos) -> None:
        """Subscribe, and then destroy the subscription before, so that nothing is missed."""
        kind = MESSAGE_TYPES[self._types[topic]]
        stamped = hasattr(kind, "header")

        def receive(data: bytes, info: MessageInfo) -> None:
            self._take(topic, data, header_ns(data) if stamped else 0, info)

        before, self._qos[topic] = self._subscriptions.get(topic), qos
        profile = QoSProfile(depth=DEPTH, reliability=qos[0], durability=qos[1])
        self._subscriptions[topic] = self._node.create_subscription(
            kind, topic, receive, profile, raw=True
        )
        if before is not None:
            self._node.destroy_subscription(before)

    def _take(self, topic: str, data: bytes, stamp_ns: int, info: MessageInfo) -> None:
        published_ns = info["source_timestamp"] or self._node.get_clock().now().nanoseconds
        lost = self._losses.lost(topic, info, self._node.count_publishers(topic))
        if lost:
            self._on_loss(topic, lost)
        message: Any = data
        self._newest[topic] = data
        if topic in self._joints.topics:
            try:
                message = self._joints.completed(topic, self.newest(topic))
            except UserError as error:
                self._node.get_logger().error(str(error), throttle_duration_sec=WARN_EVERY_S)
                return
        if topic in self._observed and stamp_ns:
            self._stamper.note(stamp_ns, published_ns)
        self._stamper.take(topic, stamp_ns, published_ns, message)


def _unpacked(topic: str, data: bytes, kind: str) -> Any:
    try:
        return deserialize_message(data, MESSAGE_TYPES[kind])
    except RuntimeError as error:  # RMWError of rclpy
        raise UserError(f"a message of '{topic}' is damaged ({error})") from error


def _qos_for(offered: Sequence[QoSProfile]) -> Qos:
    """Return the strongest QoS that all publishers offer."""
    reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
    kept = reliable and all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
    return (
        ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )
