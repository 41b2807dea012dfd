"""The thread that spins a robot ends when it is told to."""

from __future__ import annotations

import rclpy
from failing_robot import Spinning
from rclpy.node import Node


def test_a_thread_that_is_just_about_to_wait_ends() -> None:
    """`Executor.shutdown` alone would let it wait for ever."""
    rclpy.init()
    node = Node("idle")
    spinning = Spinning(node)
    executor, ended = spinning._executor, spinning._ended
    nodes = executor.get_nodes()
    executor.get_nodes = lambda: (ended.wait(), nodes)[1]  # type: ignore[method-assign]
    spinning.end()
    node.destroy_node()
    rclpy.shutdown()
