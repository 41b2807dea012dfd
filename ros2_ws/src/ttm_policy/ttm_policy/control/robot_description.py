"""Takes the limits of joints from `robot_description`, where the robot publishes it."""

from __future__ import annotations

import time

from rclpy.node import Node
from std_msgs.msg import String

from ttm.policy.errors import UserError
from ttm_policy.contract.joint_limits import read_joint_limits
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.qos import LATCHED

TOPIC = "robot_description"
"""Where robot_state_publisher publishes the URDF."""

FIRST_S = 5.0
"""How long the robot waits for a description that somebody publishes, in seconds."""


class RobotDescription:
    """Listens to the URDF of the robot, and hands the limits of its joints to all of `limits`.

    A description that cannot be used is an error in the log, and the limits before it stay in force.
    One that is published has to come before the robot moves, since its limits would come too late.
    """

    def __init__(self, node: Node, *limits: SafetyLimits):
        self._node, self._limits = node, limits
        self._waits = True
        self._expected_s: float | None = None
        self._subscription = node.create_subscription(String, TOPIC, self._on_description, LATCHED)

    @property
    def problem(self) -> str:
        """Why the robot must not move yet, or an empty text."""
        if not self._waits or not self._node.count_publishers(TOPIC):
            return ""
        now_s = time.monotonic()
        if self._expected_s is None:
            self._expected_s = now_s
        if now_s - self._expected_s < FIRST_S:
            return (
                f"{TOPIC} is published, but has not come yet; its limits of the joints are needed"
            )
        self._waits = False
        self._node.get_logger().warning(
            f"{TOPIC} is published, but has not come within {FIRST_S:g} s: the limits of the joints are "
            "those of the contract alone; publish it as robot_state_publisher does, reliable and "
            "transient local"
        )
        return ""

    def _on_description(self, message: String) -> None:
        self._waits = False
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
