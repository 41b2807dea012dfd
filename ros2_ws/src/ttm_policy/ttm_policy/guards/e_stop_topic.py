"""Connects the emergency stop to ROS: its topic, whatever the QoS, and the service `~/rearm`."""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm_policy.guards.e_stop import EStop
from ttm_policy.publishers import MessageInfo, publisher_of
from ttm_policy.qos import listen

TOPIC = "e_stop"


class EStopTopic:
    """Listens to the emergency stop. `on_change` is called after every message and every re-arming.

    It is heard from publishers of any QoS, also from one that is there for a single message. A message
    is received up to three times, which changes nothing; `listen` drops copies that come late, and releases
    that a newer press has overtaken.
    """

    def __init__(self, node: Node, e_stop: EStop, on_change: Callable[[], None]):
        self._node, self._e_stop, self._on_change = node, e_stop, on_change
        self._subscriptions = listen(
            node, Bool, TOPIC, self._receive, keeps=lambda m: bool(m.data), apart=True
        )
        self._service = node.create_service(Trigger, "~/rearm", self._rearm)

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text."""
        return self._e_stop.problem(time.monotonic(), self._node.count_publishers(TOPIC))

    def _receive(self, message: Bool, info: MessageInfo) -> None:
        publisher = publisher_of(info)
        alone = publisher is None and self._node.count_publishers(TOPIC) <= 1
        facts = {"sent_ns": info["source_timestamp"], "alone": alone}
        self._e_stop.heard(message.data, time.monotonic(), publisher, **facts)
        self._on_change()

    def _rearm(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(TOPIC))
        response.success = self._e_stop.arm([bytes(info.endpoint_gid) for info in infos])
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
