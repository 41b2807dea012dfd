"""The QoS profiles of all topics, with the reasons for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers, and keeps only the newest message."""

MERGED = QoSProfile(depth=20, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives messages of which each tells a part, such as the joints of an arm or of a base: on a busy
computer the part that comes last must not take the place of one that still waits."""

COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Not kept for late subscribers: a restarted base controller must not receive old velocities."""

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Receives commands, of which a robot carries out the newest: none waits behind older ones."""

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""Late subscribers receive the last message. This serves instructions, and all topics in lockstep:
a message that is lost while two processes discover each other would never be sent again, and both
would wait."""

TRANSFORMS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""What tf2 takes for `/tf`."""

_LISTENING = (
    QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE),
    LATCHED,
    QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT),
)

_REMEMBERED = 64
"""Messages of which late copies are recognised."""


def listen(
    node: Node,
    kind: Any,
    topic: str,
    callback: Callable[[Any], None],
    keeps: Callable[[Any], bool] = lambda _: False,
) -> list[Subscription[Any]]:
    """Subscribe to a topic of rare messages, whatever the QoS of its publishers.

    No single subscription will do. One gets what was published before it (transient local); one hears
    publishers that keep nothing, such as `ros2 topic pub --once`, whose only message a best-effort
    subscription loses if it has not discovered the publisher yet; and one hears best-effort publishers.
    `callback` gets most messages several times: it must change nothing when they are repeated. A copy of
    a message that comes after a newer one is dropped. So is a message that was lost on the subscription
    that was quicker, and comes on another one before the newer one has come there, unless `keeps` says that
    it counts even so. What comes after the newer one on the same subscription is never dropped: the clock of
    its publisher is behind.
    """
    heard_ns: deque[int] = deque(maxlen=_REMEMBERED)

    def receiver() -> Callable[[Any, Any], None]:
        own_ns: deque[int] = deque(maxlen=_REMEMBERED)

        def receive(message: Any, info: Any) -> None:
            sent_ns = info["source_timestamp"]  # the same for all copies
            newest_ns = max(heard_ns, default=sent_ns)
            own_ns.append(sent_ns)
            overtaken = sent_ns < newest_ns and newest_ns not in own_ns
            if sent_ns < newest_ns and (sent_ns in heard_ns or (overtaken and not keeps(message))):
                return
            heard_ns.append(sent_ns)
            callback(message)

        return receive

    quiet = SubscriptionEventCallbacks(incompatible_qos=lambda _: None)  # for the other two
    return [
        node.create_subscription(kind, topic, receiver(), qos, event_callbacks=quiet)
        for qos in _LISTENING
    ]
