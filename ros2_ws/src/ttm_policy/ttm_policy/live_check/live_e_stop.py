"""Looks for the emergency stop on the live graph."""

from __future__ import annotations

from rclpy.node import Node

from ttm_policy.guards.e_stop_topic import TOPIC
from ttm_policy.live_check.finding import Finding
from ttm_policy.live_check.graph import full_type, names_of

TYPE = "std_msgs/Bool"


def e_stop_finding(node: Node) -> Finding:
    """Return who sends the emergency stop. A robot may do without: its button may cut the power."""
    infos = node.get_publishers_info_by_topic(node.resolve_topic_name(TOPIC))
    if not infos:
        return Finding(TOPIC, "nobody publishes it: no button stops the policy")
    problems = []
    if others := sorted({info.topic_type for info in infos} - {full_type(TYPE)}):
        problems.append(
            f"it is published as {', '.join(others).replace('/msg/', '/')}, which no node of this "
            f"package hears; send {TYPE}, true while the button is pressed"
        )
    return Finding(TOPIC, f"sent by {names_of(infos)}", tuple(problems))
