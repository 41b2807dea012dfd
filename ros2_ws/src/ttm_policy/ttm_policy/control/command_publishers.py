"""Publishes the policy's commands, and the command that stops the robot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.duration import Duration
from rclpy.node import Node
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.control.control_loop import PolicyTick
from ttm_policy.qos import COMMAND, LATCHED

FLUSH_S = 0.5
"""The longest wait for subscribers to acknowledge the last commands."""


class CommandPublishers:
    """One publisher for each command topic, and one for `~/action`."""

    def __init__(self, node: Node, codec: CommandCodec, *, lockstep: bool):
        self._node, self._codec = node, codec
        qos = LATCHED if lockstep else COMMAND
        self._publishers = {
            topic: node.create_publisher(kind, topic, qos) for topic, kind in codec.types().items()
        }
        self._action = node.create_publisher(Float32MultiArray, "~/action", 10)

    def publish(self, tick: PolicyTick, stamp: Time) -> None:
        """Send the limited command to the robot, and the policy's own action to `~/action`."""
        for topic, message in self._codec.encode(tick.command, stamp).items():
            self._publishers[topic].publish(message)
        self._action.publish(self._action_message(tick.action))

    def stop(self) -> None:
        """Send zero to all topics that move the robot, stamped with the time now."""
        for topic, message in self._codec.stop(self._node.get_clock().now().to_msg()).items():
            self._publishers[topic].publish(message)

    def flush(self) -> None:
        """Wait until the commands have arrived, since an exit drops those not sent yet."""
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=FLUSH_S))

    def close(self) -> None:
        """Destroy all publishers."""
        for publisher in (*self._publishers.values(), self._action):
            self._node.destroy_publisher(publisher)

    def _action_message(self, action: npt.NDArray[np.float32]) -> Float32MultiArray:
        """Return the action (A,) with the names of its parts in the layout."""
        message = Float32MultiArray(data=action.tolist())
        message.layout.dim = [
            MultiArrayDimension(label=part.name, size=part.size, stride=part.size)
            for part in self._codec.spec.actions
        ]
        return message
