"""Takes the limits of joints from `robot_description`, where the robot publishes it."""

from __future__ import annotations

from rclpy.node import Node
from std_msgs.msg import String

from ttm.policy.errors import UserError
from ttm_policy.contract.joint_limits import read_joint_limits
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.qos import LATCHED

TOPIC = "robot_description"
"""Where robot_state_publisher publishes the URDF."""


class RobotDescription:
    """Listens to the URDF of the robot, and hands the limits of its joints to all of `limits`.

    A description that cannot be used is an error in the log, and the limits before it stay in force.
    """

    def __init__(self, node: Node, *limits: SafetyLimits):
        self._node, self._limits = node, limits
        self._subscription = node.create_subscription(String, TOPIC, self._on_description, LATCHED)

    def _on_description(self, message: String) -> None:
        try:
            joints = read_joint_limits(message.data)
            for limits in self._limits:
                limits.set_joint_limits(joints)
        except UserError as error:
            self._node.get_logger().error(str(error))
        else:
            self._node.get_logger().info(f"limits of the joints are those of {TOPIC}")

    def close(self) -> None:
        """Destroy the subscription."""
        self._node.destroy_subscription(self._subscription)
