"""Connects the emergency stop to ROS: its topic, whatever the QoS, and the service `~/rearm`."""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm_policy.guards.e_stop import EStop
from ttm_policy.qos import LATCHED, SENSOR

TOPIC = "e_stop"


class EStopTopic:
    """Listens to the emergency stop. `on_change` is called after every message and every re-arming.

    A best-effort subscription receives from every publisher, but not what a latched topic said before.
    A second one, which is latched, receives that. It is made as soon as there is a latched publisher,
    since all others would warn that they cannot reach it.
    """

    def __init__(self, node: Node, e_stop: EStop, on_change: Callable[[], None]):
        self._node, self._e_stop, self._on_change = node, e_stop, on_change
        self._subscriptions = [node.create_subscription(Bool, TOPIC, self._receive, SENSOR)]
        self._service = node.create_service(Trigger, "~/rearm", self._rearm)
        self._publishers = 0

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text."""
        publishers = self._node.count_publishers(TOPIC)
        if publishers != self._publishers:
            self._publishers = publishers
            self._hear_latched()
        return self._e_stop.problem(time.monotonic(), publishers)

    def _hear_latched(self) -> None:
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(TOPIC))
        latched = DurabilityPolicy.TRANSIENT_LOCAL
        heard = any(s.qos_profile.durability is latched for s in self._subscriptions)
        if not heard and any(info.qos_profile.durability is latched for info in infos):
            self._subscriptions.append(
                self._node.create_subscription(Bool, TOPIC, self._receive, LATCHED)
            )

    def _receive(self, message: Bool) -> None:
        self._e_stop.heard(message.data, time.monotonic())
        self._on_change()

    def _rearm(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self._e_stop.arm()
        self._on_change()
        response.message = (
            (self.problem or "armed") if response.success else "release the emergency stop first"
        )
        return response

    def close(self) -> None:
        """Destroy the subscriptions and the service."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._node.destroy_service(self._service)
