"""Names, types and endpoints on the live graph, in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rclpy.node import Node


def full_type(kind: str) -> str:
    """Return a contract's type as the graph names it: `std_msgs/Bool` is `std_msgs/msg/Bool`."""
    return kind.replace("/", "/msg/")


def wrong_types(infos: Collection[Any], kind: str, what: str) -> list[str]:
    """Return a problem if endpoints of a topic have another type. what: `published` or `taken`."""
    others = sorted({info.topic_type for info in infos} - {full_type(kind)})
    if not others:
        return []
    names = ", ".join(other.replace("/msg/", "/") for other in others)
    hint = ""
    if {kind, *names.split(", ")} == {"geometry_msgs/TwistStamped", "geometry_msgs/Twist"}:
        fields = "twist.linear.x, …" if kind.endswith("/Twist") else "linear.x, …"
        hint = f", with fields such as {fields}"
    return [f"it is {what} as {names}, not as {kind}; write that type in the contract{hint}"]


def nobody(node: Node, kind: str, verb: str, others: Collection[str]) -> str:
    """Return the problem that a topic has no endpoint, with topics that could be meant.

    verb: `publishes` or `listens to`. others: topics that have such an endpoint.
    """
    known = sorted(
        name
        for name, types in node.get_topic_names_and_types()
        if full_type(kind) in types and name in others
    )
    hint = f"; {kind} is there as: {', '.join(known)}" if known else "; start the driver"
    return f"nobody {verb} it{hint}"


def names_of(infos: Collection[Any]) -> str:
    """Return the nodes of endpoints, in the order of the alphabet."""
    return ", ".join(sorted({info.node_name for info in infos}))
