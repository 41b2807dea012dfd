"""Who sent a message, and which messages were lost, with what rclpy tells in Kilted and in Jazzy."""

from __future__ import annotations

from typing import Any

import rclpy
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm_policy.qos import MOST_SENDERS, LossCounter, publisher_of


def _info(number: int | None, sender: bytes | None = None) -> dict[str, Any]:
    known = (
        {"publisher_gid": {"implementation_identifier": "rmw", "data": sender}} if sender else {}
    )
    return {"publication_sequence_number": number, **known}


def test_publishers_are_told_apart_as_far_as_rclpy_does() -> None:
    """Jazzy has no `publisher_gid`, which ended the recorder there."""
    assert publisher_of(_info(1, b"left")) == b"left"
    assert publisher_of(_info(1)) is None
    rclpy.init()
    try:
        node, infos = Node("reader"), []
        node.create_subscription(Bool, "button", lambda _, info: infos.append(info), 10)
        publishers = [node.create_publisher(Bool, "button", 10) for _ in range(2)]
        for publisher in publishers:
            seen = len(infos)
            publisher.publish(Bool())
            while len(infos) == seen:
                rclpy.spin_once(node, timeout_sec=1.0)
    finally:
        rclpy.shutdown()
    first, second = map(publisher_of, infos)
    assert (first != second) == ("publisher_gid" in infos[0])


def test_a_gap_in_the_numbers_of_a_publisher_is_a_loss() -> None:
    counter = LossCounter()
    for number, sender, lost in ((1, b"a", 0), (700, b"b", 0), (4, b"a", 2), (701, b"b", 0)):
        assert counter.lost("eye", _info(number, sender), 2) == lost
    assert counter.lost("hand", _info(9, b"a"), 2) == 0, "another topic"
    assert counter.lost("eye", _info(1, b"a"), 2) == 0, "started again"
    assert counter.lost("eye", _info(None, b"a"), 2) == 0, "a transport without numbers"


def test_of_publishers_that_come_and_go_the_newest_are_remembered() -> None:
    counter = LossCounter()
    for sender in range(3 * MOST_SENDERS):
        counter.lost("eye", _info(1, sender.to_bytes(4, "big")), 2)
        assert counter.lost("eye", _info(sender + 1, b"camera"), 2) == 0
    assert len(counter._numbers) == MOST_SENDERS


def test_without_identities_only_the_numbers_of_a_single_publisher_are_compared() -> None:
    counter = LossCounter()
    for number, publishers, lost in ((1, 1, 0), (3, 1, 1), (700, 2, 0), (4, 2, 0), (701, 1, 0)):
        assert counter.lost("eye", _info(number), publishers) == lost
    assert counter.lost("eye", _info(703), 1) == 1
