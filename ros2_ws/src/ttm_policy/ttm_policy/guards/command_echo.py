"""Notices commands of others on the topics to which the policy sends its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

from ttm.policy.errors import ObservationError

ECHO = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers."""
REMEMBERED = 256
"""Own messages that are remembered for each topic: five seconds of 50 a second."""
CALM_S = 1.0
"""The time without a command of others after which the policy may go on, in seconds."""


class ForeignCommand(ObservationError):
    """Somebody else commands the robot as well, so that what it does is not what the policy commands."""


class CommandEcho:
    """Receives what is sent to the robot, and compares it with what this node has sent.

    A publisher that only exists, such as that of a process that was killed, is no fault: what counts is
    what it sends.
    """

    def __init__(self, node: Node, types: Mapping[str, Any]):
        """types: the message class of each command topic."""
        self._node = node
        # Messages and not their bytes are compared, since bytes for padding are arbitrary.
        self._own: dict[str, deque[Any]] = {topic: deque(maxlen=REMEMBERED) for topic in types}
        self._foreign_s: dict[str, float] = {}
        self._subscriptions = [self._listen(topic, kind) for topic, kind in types.items()]

    def _listen(self, topic: str, kind: Any) -> Subscription[Any]:
        def receive(message: Any) -> None:
            # A copy, since the thread that stops the robot may send meanwhile.
            if message not in tuple(self._own[topic]):
                self._foreign_s[topic] = time.monotonic()

        return self._node.create_subscription(kind, topic, receive, ECHO)

    def sent(self, topic: str, message: Any) -> None:
        """Take note of an own message. Call this before it is published."""
        self._own[topic].appendleft(message)

    def unheard(self, publishers: Mapping[str, Publisher[Any]]) -> set[str]:
        """Return the topics to which nobody but this node listens, of its publisher for each topic."""
        return {topic for topic, own in publishers.items() if own.get_subscription_count() <= 1}

    def require_alone(self, wall_s: float) -> None:
        """Raise `ForeignCommand` if somebody else has commanded the robot within `CALM_S`."""
        for topic, foreign_s in self._foreign_s.items():
            if wall_s - foreign_s < CALM_S:
                raise ForeignCommand(
                    f"{self._node.resolve_topic_name(topic)} gets commands from another publisher"
                    f"{self._others(topic)}; stop it, or remap one of the two"
                )

    def _others(self, topic: str) -> str:
        own = self._node.get_name(), self._node.get_namespace()
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(topic))
        names = sorted(
            {info.node_name for info in infos if (info.node_name, info.node_namespace) != own}
        )
        return f" ({', '.join(names)})" if names else ""

    def close(self) -> None:
        """Destroy all subscriptions."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
