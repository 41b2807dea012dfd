"""Publishes what the policy commands, and the stop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.duration import Duration
from rclpy.node import Node
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm_policy.commands import CommandCodec
from ttm_policy.control_loop import Tick
from ttm_policy.quality import COMMAND, LATCHED

FLUSH_S = 0.5


class CommandPublishers:
    """One publisher for each command topic, and `~/action` for who wants to look."""

    def __init__(self, node: Node, codec: CommandCodec, *, lockstep: bool):
        self._node, self._codec = node, codec
        quality = LATCHED if lockstep else COMMAND
        self._publishers = {
            topic: node.create_publisher(kind, topic, quality)
            for topic, kind in codec.types().items()
        }
        self._action = node.create_publisher(Float32MultiArray, "~/action", 10)

    def publish(self, tick: Tick, stamp: Time) -> None:
        """The limited command to the robot; `~/action` is what the policy itself said."""
        for topic, message in self._codec.encode(tick.command, stamp).items():
            self._publishers[topic].publish(message)
        self._action.publish(self._action_message(tick.action))

    def stop(self) -> None:
        """Zero for all that moves, stamped with the time now."""
        for topic, message in self._codec.stop(self._node.get_clock().now().to_msg()).items():
            self._publishers[topic].publish(message)

    def flush(self) -> None:
        """Wait until the commands have arrived: a process that ends takes what it has not sent with it."""
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=FLUSH_S))

    def close(self) -> None:
        """Withdraw all topics."""
        for publisher in (*self._publishers.values(), self._action):
            self._node.destroy_publisher(publisher)

    def _action_message(self, action: npt.NDArray[np.float32]) -> Float32MultiArray:
        """(A,) with the parts' names in the layout."""
        message = Float32MultiArray(data=action.tolist())
        message.layout.dim = [
            MultiArrayDimension(label=part.name, size=part.size, stride=part.size)
            for part in self._codec.spec.actions
        ]
        return message
