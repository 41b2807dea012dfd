"""Tells a person that two nodes have one name, which ROS allows."""

from __future__ import annotations

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

LOOK_AFTER_S = 2.0
"""By then a node knows those that were there before it; those that come later tell it themselves."""


def tell_namesakes(node: Node) -> None:
    """Warn once, soon after the start, if another node has the name of this one."""

    def look() -> None:
        timer.cancel()
        own = node.get_name(), node.get_namespace()
        if node.get_node_names_and_namespaces().count(own) > 1:
            node.get_logger().warning(
                f"another node of this ROS domain is called {node.get_fully_qualified_name()}, or one was "
                "killed within the last 20 s; services reach either of them: end one, or start it in a "
                "namespace (-r __ns:=/left)"
            )

    # On the steady clock, since simulated time may stand still.
    timer = node.create_timer(LOOK_AFTER_S, look, clock=Clock(clock_type=ClockType.STEADY_TIME))
