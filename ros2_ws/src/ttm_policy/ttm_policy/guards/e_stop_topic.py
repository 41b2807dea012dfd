"""Connects the emergency stop to ROS: its topic, whatever the QoS, and the service `~/rearm`."""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm_policy.guards.e_stop import EStop
from ttm_policy.guards.stop_thread import StopThread
from ttm_policy.publishers import MessageInfo, publisher_of
from ttm_policy.qos import listen

TOPIC = "e_stop"

SILENCE_LOOKS = 4
"""How often a silence of `e_stop_timeout_s` is looked for within that time."""

SHORT = "it was pressed for a moment"
"""What is told of a stop that was over before the thread of the node could heed it."""


class EStopTopic:
    """Listens to the emergency stop, on the thread that stops the robot at once.

    `on_change` is called by the thread of the node after every message and every re-arming.

    It is heard from publishers of any QoS, also from one that is there for a single message. A message
    is received up to three times, which changes nothing; `listen` drops copies that come late, and releases
    that a newer press has overtaken.
    """

    def __init__(self, stop: StopThread, e_stop: EStop, on_change: Callable[[], None]):
        self._node, self._stop, self._e_stop = stop.owner, stop, e_stop
        self._untold = False
        """Whether `problem` has told nothing of the newest stop yet."""
        self._on_change = stop.on_news = on_change
        topic = self._node.resolve_topic_name(TOPIC)
        listen(stop.node, Bool, topic, self._receive, keeps=lambda m: bool(m.data), apart=True)
        if e_stop.timeout_s:
            steady = Clock(clock_type=ClockType.STEADY_TIME)
            stop.node.create_timer(e_stop.timeout_s / SILENCE_LOOKS, self._heed, clock=steady)
        self._service = self._node.create_service(Trigger, "~/rearm", self._rearm)

    @property
    def problem(self) -> str:
        """Why the robot must not move now, or an empty text. A stop that is over by now is told once.

        After an empty text the robot may move: whoever reads this has taken note of all stops before.
        """
        with self._stop.lock:
            problem = self._problem()
            if self._untold and not problem:
                problem = SHORT
            self._untold = False
            if not problem:
                self._stop.stopped = False
            return problem

    def _problem(self) -> str:
        return self._e_stop.problem(time.monotonic(), self._node.count_publishers(TOPIC))

    def _heed(self) -> None:
        """Stop the robot if it must not move; on the thread that does so."""
        with self._stop.lock:
            if not self._stop.stopped and self._problem():
                self._untold = True
                self._stop.stop()

    def _receive(self, message: Bool, info: MessageInfo) -> None:
        publisher = publisher_of(info)
        alone = publisher is None and self._node.count_publishers(TOPIC) <= 1
        facts = {"sent_ns": info["source_timestamp"], "alone": alone}
        with self._stop.lock:
            self._e_stop.heard(message.data, time.monotonic(), publisher, **facts)
            self._heed()
        self._stop.tell()

    def _rearm(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(TOPIC))
        with self._stop.lock:
            response.success = self._e_stop.arm([bytes(info.endpoint_gid) for info in infos])
            problem = self._problem()
        self._on_change()
        response.message = (
            (problem or "armed") if response.success else "release the emergency stop first"
        )
        return response

    def close(self) -> None:
        """Destroy the service. The subscriptions end with the thread."""
        self._node.destroy_service(self._service)
