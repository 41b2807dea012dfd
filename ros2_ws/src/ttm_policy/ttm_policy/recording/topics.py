"""Subscribes to all topics of a contract, and passes on every message with its stamp."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

from ttm.policy.errors import UserError
from ttm_policy.inputs import WARN_EVERY_S
from ttm_policy.messages import MESSAGE_TYPES
from ttm_policy.qos import LossCounter, MessageInfo
from ttm_policy.recording.matching import Stamped, Stamper, header_ns
from ttm_policy.recording.session import RecordingSession
from ttm_policy.recording.values import JointTopics, TickValues, unpacked

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
    """

    def __init__(
        self, node: Node, values: TickValues, session: RecordingSession, *, simulated: bool
    ) -> None:
        """session: gets the messages. simulated: whether their stamps are in simulated time."""
        self._node, self._session = node, session
        self._types, self._observed = values.types, session.topics.observed
        self._joints, self._stamper = JointTopics(values.contract), Stamper(simulated=simulated)
        self._losses = LossCounter()
        self._qos: dict[str, Qos] = {}
        self._subscriptions: dict[str, Subscription[Any]] = {}
        for topic in self._types.keys() - self._observed:
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

    def flush(self) -> None:
        """Pass on the messages that wait for an observation after them."""
        self._pass_on(self._stamper.flush())

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
        if lost := self._losses.lost(topic, info, self._node.count_publishers(topic)):
            self._session.lose(topic, lost)
        message: Any = data
        if topic in self._joints.topics:
            try:
                message = unpacked(topic, data, self._types[topic])
            except UserError as error:
                self._node.get_logger().error(str(error), throttle_duration_sec=WARN_EVERY_S)
                return
            message = self._joints.completed(topic, message)
        if topic in self._observed and stamp_ns:
            self._pass_on(self._stamper.note(stamp_ns, published_ns))
        self._pass_on(self._stamper.take(topic, stamp_ns, published_ns, message))

    def _pass_on(self, messages: Sequence[Stamped]) -> None:
        for message in messages:
            self._session.message(*message)


def _qos_for(offered: Sequence[QoSProfile]) -> Qos:
    """Return the strongest QoS that all publishers offer."""
    reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
    kept = reliable and all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
    return (
        ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )
