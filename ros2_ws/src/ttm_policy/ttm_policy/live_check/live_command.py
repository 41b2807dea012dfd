"""Looks for the listeners of a command topic on the live graph."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible

from ttm_policy.live_check.finding import Finding
from ttm_policy.live_check.graph import full_type, names_of, nobody, wrong_types
from ttm_policy.qos import COMMAND

OURS = "policy_node"
"""The node that sends the commands, and hears them in order to notice other senders."""


def command_finding(node: Node, topic: str, kind: str) -> Finding:
    """Return whether somebody listens to a command, and nobody else sends it."""
    resolved = node.resolve_topic_name(topic)
    listeners = _others(node.get_subscriptions_info_by_topic(resolved))
    senders = _others(node.get_publishers_info_by_topic(resolved))
    problems = wrong_types(listeners, kind, "taken")
    if not listeners:
        taken = [
            name
            for name, _ in node.get_topic_names_and_types()
            if _others(node.get_subscriptions_info_by_topic(name))
        ]
        problems.append(nobody(node, kind, "listens to", taken))
    for info in listeners:
        reason = _mismatch(info.qos_profile)
        if reason and info.topic_type == full_type(kind):
            problems.append(
                f"{info.node_name} would not receive it ({reason}); let it listen with the default "
                "quality of service"
            )
    if senders:
        problems.append(
            f"{names_of(senders)} sends it, too; end that node before the policy starts"
        )
    heard = f"heard by {names_of(listeners)}" if listeners else "no listener"
    return Finding(topic, f"{kind}, {heard}", tuple(problems))


def _others(infos: Collection[Any]) -> list[Any]:
    return [info for info in infos if info.node_name != OURS]


def _mismatch(listener: QoSProfile) -> str:
    """Return why a listener would not receive our commands, or an empty string.

    Deadlines are left out: the graph tells an endless one in another way than a profile has it.
    """
    asked = QoSProfile(depth=1, reliability=listener.reliability, durability=listener.durability)
    verdict, reason = qos_check_compatible(COMMAND, asked)
    if verdict != QoSCompatibility.ERROR:
        return ""
    return reason.strip().rstrip(";").removeprefix("ERROR: ").lower()
