"""The quality of service of all topics: the profiles, how to hear every publisher, and what was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives from reliable and from best-effort publishers, and keeps only the newest message."""
MERGED = QoSProfile(depth=20, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Receives messages of which each has a part, such as the joints of an arm or of a base: on a busy
computer the part that comes last must not take the place of one that still waits."""
COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Not kept for late subscribers: a restarted base controller must not receive old velocities."""
NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Receives commands, of which a robot carries out the newest: none waits behind older ones."""
LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""Late subscribers receive the last message, such as an instruction. In lockstep, both processes would wait
for ever for one that is lost while they discover each other."""
TRANSFORMS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""What tf2 takes for `/tf`."""
_LISTENING = (
    QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE),
    LATCHED,
    QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT),
)

MOST_SENDERS = 1024
"""So many publishers are remembered in order to find losses, those that were heard last."""
_REMEMBERED = 64
"""Messages of which late copies are recognised, and publishers whose messages are."""

MessageInfo = Mapping[str, Any]
"""What a callback with two arguments gets beside its message. Jazzy has no type for it."""


def publisher_of(info: MessageInfo) -> bytes | None:
    """Return the identity (GID) of the sender of a message; None in Jazzy, where rclpy does not name it."""
    gid = info.get("publisher_gid")
    return bytes(gid["data"]) if gid else None


def listen(
    node: Node,
    kind: Any,
    topic: str,
    callback: Callable[[Any, MessageInfo], None],
    keeps: Callable[[Any], bool] = lambda _: False,
    *,
    apart: bool = False,
) -> list[Subscription[Any]]:
    """Subscribe to a topic of rare messages, whatever the QoS of its publishers.

    No single subscription will do. One gets what was published before it (transient local); one hears
    publishers that keep nothing, such as `ros2 topic pub --once`, whose only message a best-effort
    subscription may lose; and one hears best-effort publishers. `callback` gets most messages several times.

    A copy of a message that comes after a newer one is dropped. So is a message that was lost on the
    subscription that was quicker, and comes on another one before the newer one has come there, unless
    `keeps` says that it counts even so. What comes after the newer one on the same subscription is never
    dropped: the clock of its publisher is behind. With `apart`, only messages of one publisher are compared.
    """
    heard = _Times()

    def receiver() -> Callable[[Any, Any], None]:
        own = _Times()

        def receive(message: Any, info: Any) -> None:
            publisher = publisher_of(info) if apart else None
            heard_ns, own_ns = heard.of(publisher), own.of(publisher)
            sent_ns = info["source_timestamp"]  # the same for all copies
            newest_ns = max(heard_ns, default=sent_ns)
            own_ns.append(sent_ns)
            overtaken = sent_ns < newest_ns and newest_ns not in own_ns
            if sent_ns < newest_ns and (sent_ns in heard_ns or (overtaken and not keeps(message))):
                return
            heard_ns.append(sent_ns)
            callback(message, info)

        return receive

    quiet = SubscriptionEventCallbacks(incompatible_qos=lambda _: None)  # for the other two
    return [
        node.create_subscription(kind, topic, receiver(), qos, event_callbacks=quiet)
        for qos in _LISTENING
    ]


class _Times:
    """When the last messages of each publisher were sent; the newest publishers are remembered."""

    def __init__(self) -> None:
        self._sent_ns: dict[bytes | None, deque[int]] = {}

    def of(self, publisher: bytes | None) -> deque[int]:
        """Return the times of one publisher, to which the caller adds."""
        times = self._sent_ns.pop(publisher, None) or deque(maxlen=_REMEMBERED)
        self._sent_ns[publisher] = times
        if len(self._sent_ns) > _REMEMBERED:
            del self._sent_ns[next(iter(self._sent_ns))]
        return times


class LossCounter:
    """Finds lost messages by their publishers' numbers; where those are unknown, of a single one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes | None], int] = {}

    def lost(self, topic: str, info: MessageInfo, publishers: int) -> int:
        """Return how many of the sender's messages were lost before it. publishers: those of the topic."""
        key, number = (topic, publisher_of(info)), info["publication_sequence_number"]
        before = self._numbers.pop(key, None)
        if number is None or (key[1] is None and publishers != 1):
            return 0
        self._numbers[key] = number
        if len(self._numbers) > MOST_SENDERS:
            del self._numbers[next(iter(self._numbers))]
        return 0 if before is None else max(0, number - before - 1)
