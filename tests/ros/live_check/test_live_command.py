"""What is said about who listens to a command, and who else sends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm_policy.live_check.finding import Finding
from ttm_policy.live_check.live_command import command_finding
from ttm_policy.qos import LATCHED

TWIST = "geometry_msgs/Twist"


@pytest.fixture
def nodes() -> Iterator[Callable[[str], Node]]:
    rclpy.init()
    made: list[Node] = []

    def make(name: str) -> Node:
        made.append(Node(name))
        return made[-1]

    yield make
    for node in made:
        node.destroy_node()
    rclpy.shutdown()


def _finding(node: Node, topic: str, endpoints: int, kind: str = TWIST) -> Finding:
    """What is found once all `endpoints` of the topic are known."""
    deadline_s = time.monotonic() + 180.0
    while node.count_publishers(topic) + node.count_subscribers(topic) < endpoints:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return command_finding(node, topic, kind)


def test_the_policys_own_node_is_no_listener_and_no_rival(nodes: Callable[[str], Node]) -> None:
    watcher, policy, base = nodes("watcher"), nodes("policy_node"), nodes("base")
    policy.create_publisher(Twist, "cmd_vel", 10)
    policy.create_subscription(Twist, "cmd_vel", print, 10)
    assert "nobody listens to it" in _finding(watcher, "cmd_vel", 2).problems[0]
    base.create_subscription(Twist, "cmd_vel", print, 10)
    finding = _finding(watcher, "cmd_vel", 3)
    assert finding.problems == ()
    assert finding.seen == "geometry_msgs/Twist, heard by base"


def test_rivals_types_and_quality_of_service_are_told(nodes: Callable[[str], Node]) -> None:
    watcher, other = nodes("watcher"), nodes("teleop")
    other.create_publisher(Twist, "cmd_vel", 10)
    other.create_subscription(Twist, "cmd_vel", print, LATCHED)
    other.create_subscription(Bool, "gripper", print, 10)
    late, rival = _finding(watcher, "cmd_vel", 2).problems
    assert late == (
        "teleop would not receive it (volatile publisher and transient local subscription); "
        "let it listen with the default quality of service"
    )
    assert rival == "teleop sends it, too; end that node before the policy starts"
    (wrong,) = _finding(watcher, "gripper", 1).problems
    assert wrong == (
        "it is taken as std_msgs/Bool, not as geometry_msgs/Twist; write that type in the contract"
    )
