"""Looks for the listeners of a command topic on the live graph."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, qos_check_compatible

from ttm_policy.live_check.finding import Finding
from ttm_policy.live_check.graph import full_type, names_of, nobody, wrong_types
from ttm_policy.qos import COMMAND

OURS = "policy_node"
"""The node that may already publish commands."""


def command_finding(node: Node, topic: str, kind: str) -> Finding:
    """Return whether somebody listens to a command, and nobody else sends it."""
    resolved = node.resolve_topic_name(topic)
    listeners = node.get_subscriptions_info_by_topic(resolved)
    senders = [
        info for info in node.get_publishers_info_by_topic(resolved) if info.node_name != OURS
    ]
    problems = wrong_types(listeners, kind, "taken")
    if not listeners:
        taken = [
            name for name, _ in node.get_topic_names_and_types() if node.count_subscribers(name)
        ]
        problems.append(nobody(node, kind, "listens to", taken))
    for info in listeners:
        verdict, reason = qos_check_compatible(COMMAND, info.qos_profile)
        if verdict is QoSCompatibility.ERROR and info.topic_type == full_type(kind):
            problems.append(
                f"{info.node_name} would not receive it ({reason.strip().rstrip(';')}); let it listen "
                "with the default quality of service"
            )
    if senders:
        problems.append(
            f"{names_of(senders)} sends it, too; end that node before the policy starts"
        )
    heard = f"heard by {names_of(listeners)}" if listeners else "no listener"
    return Finding(topic, f"{kind}, {heard}", tuple(problems))
