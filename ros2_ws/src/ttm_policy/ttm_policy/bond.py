"""The bond by which the lifecycle manager of Nav2 knows that an active node is alive.

The protocol is that of the package `bond` (ros/bond_core): both sides publish their state on the topic
`bond` under the same ID, the name of the managed node. The ID of an instance distinguishes the two sides. No
wheel carries the message type, so that a bond is formed only where ROS has the package.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile

TOPIC = "bond"
PERIOD_PARAMETER = "bond_heartbeat_period"
CONNECT_TIMEOUT_S = 10.0
"""How long the node looks for a manager. This is the default of the package `bond`."""
HEARTBEAT_TIMEOUT_S = 4.0
"""What the messages say about the longest silence. A manager has a setting of its own, `bond_timeout`."""
OURS = "ttm_policy-"
"""What the IDs of instances in this package begin with. Those of a manager are bare UUIDs."""
ACKNOWLEDGED_S = 0.1
"""The longest wait for the manager to receive the end of the bond."""


def bond_type() -> Any:
    """Return the type of the messages, or None if ROS does not have the package."""
    try:
        return import_module("bond.msg").Status
    except (ImportError, AttributeError):
        return None


def form_bond(node: LifecycleNode) -> Bond | None:
    """Begin the bond of a node that becomes active, or return None if it is to have none."""
    period_s = node.get_parameter(PERIOD_PARAMETER).value
    if not period_s:
        return None
    kind = bond_type()
    if kind is None:
        node.get_logger().info(
            "no bond with a lifecycle manager, because the ROS package bond is not installed"
        )
        return None
    return Bond(node, kind, period_s)


class Bond:
    """One end of a bond: a heartbeat from the activation of a node to its deactivation.

    It falls silent if no manager answers within `CONNECT_TIMEOUT_S`, and when the manager ends the
    bond. As with the nodes of Nav2, neither that nor a silent manager stops the robot: the manager does
    so by deactivating the node.
    """

    def __init__(
        self,
        node: LifecycleNode,
        kind: Any,
        period_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ):
        """Begin the heartbeat.

        kind: what `bond_type` returned. period_s: time between two messages. now_s: steady time.
        """
        self._node, self._kind, self._period_s, self._now_s = node, kind, period_s, now_s
        self._instance_id = f"{OURS}{uuid.uuid4()}"
        self._until_s = now_s() + CONNECT_TIMEOUT_S
        self.formed = self.over = False
        self._publisher = node.create_publisher(kind, TOPIC, QoSProfile(depth=5))
        self._subscription = node.create_subscription(
            kind, TOPIC, self._receive, QoSProfile(depth=100)
        )
        # On the steady clock, since simulated time may stand still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(period_s, self._beat, clock=steady)
        self._send(active=True)

    def _beat(self) -> None:
        if not self.formed and self._now_s() > self._until_s:
            self.over = True
        if self.over:
            self._timer.cancel()
        else:
            self._send(active=True)

    def _receive(self, message: Any) -> None:
        """Obey the manager. The topic carries other bonds too, and nodes of the same name as this one."""
        if message.instance_id.startswith(OURS) or message.id != self._node.get_name() or self.over:
            return
        if not self.formed:
            self.formed = True
            self._node.get_logger().info("bonded with the lifecycle manager")
        if not message.active:
            self.over = True
            self._send(active=False)
            self._node.get_logger().info("the lifecycle manager has ended the bond")

    def _send(self, *, active: bool) -> None:
        message = self._kind()
        message.header.stamp = self._node.get_clock().now().to_msg()
        message.id, message.instance_id = self._node.get_name(), self._instance_id
        message.active = active
        message.heartbeat_timeout = HEARTBEAT_TIMEOUT_S
        message.heartbeat_period = float(self._period_s)
        self._publisher.publish(message)

    def end(self) -> None:
        """End the bond, tell the manager, and destroy the topics."""
        if not self.over:
            self.over = True
            self._send(active=False)
            self._publisher.wait_for_all_acked(Duration(seconds=ACKNOWLEDGED_S))
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._publisher)
