"""What is said about who listens to a command, and who else sends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from std_msgs.msg import Bool

from ttm_policy.live_check import Finding, command_finding, e_stop_finding
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
    assert _finding(watcher, "cmd_vel", 2).problems == ("nobody listens to it; start the driver",)
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
        "teleop would not hear it (volatile publisher and transient local subscription); "
        "use the default QoS"
    )
    assert rival == "teleop sends it, too; end that node before the policy starts"
    (wrong,) = _finding(watcher, "gripper", 1).problems
    assert wrong == (
        "it is taken as std_msgs/Bool, not as geometry_msgs/Twist; write that type in the contract"
    )


def _button(*senders: tuple[str, str]) -> Finding:
    """What is said about an emergency stop that nodes send as messages of a type."""
    infos = [SimpleNamespace(node_name=name, topic_type=kind) for name, kind in senders]
    node = SimpleNamespace(
        resolve_topic_name=lambda topic: f"/{topic}",
        get_publishers_info_by_topic=lambda topic: infos if topic == "/e_stop" else [],
    )
    return e_stop_finding(node)  # type: ignore[arg-type]


def test_an_emergency_stop_of_another_type_is_told() -> None:
    """A stand-in of the graph, since one process cannot publish a topic with two types."""
    one, other = ("button", "std_msgs/msg/Bool"), ("panel", "std_msgs/msg/Bool")
    assert _button(one) == Finding("e_stop", "sent by button")
    assert _button(one, other) == Finding("e_stop", "sent by button, panel")
    (problem,) = _button(("button", "std_msgs/msg/String")).problems
    assert "it is published as std_msgs/String, not as std_msgs/Bool; send std_msgs/Bool" in problem
    assert _button().seen == "nobody publishes it: no button stops the policy"
