"""The stop button of the page: one more button of the emergency stop, over ROS."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rclpy.client import Client
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm_policy.guards.e_stop_topic import TOPIC
from ttm_policy.qos import LATCHED
from ttm_policy.web.calls import ANSWER_S, ask

REPEAT_S = 0.1
"""The time between two messages of a pressed button; not everybody who listens hears the first one."""
FLUSH_S = 0.5
"""The longest wait for all listeners to acknowledge the release."""
LOOK_S = 0.02
SERVICE = "rearm"


class StopButton:
    """Stops every node that hears the emergency stop, whoever drives, until `rearm` is called.

    It has a publisher only while it is pressed. Otherwise the robot's own button alone counts, and no
    message of a page hides that its driver has fallen silent. All calls but those of the timer come from
    the server's thread.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._publisher: Publisher[Any] | None = None
        self._rearms: dict[str, Client[Any, Any]] = {}
        # On the steady clock, since simulated time may stand still.
        node.create_timer(REPEAT_S, self._repeat, clock=Clock(clock_type=ClockType.STEADY_TIME))

    @property
    def pressed(self) -> bool:
        """Whether a page has pressed it."""
        return self._publisher is not None

    def press(self) -> None:
        """Stop the robot."""
        with self._lock:
            if self._publisher is None:
                self._publisher = self._node.create_publisher(Bool, TOPIC, LATCHED)
            self._publisher.publish(Bool(data=True))

    async def rearm(self) -> str:
        """Release the button, and let all nodes of the namespace go on; return what they say.

        Raises `UserError` if one of them may not, such as under another button that is pressed.
        """
        await asyncio.to_thread(self._release)
        if self.pressed:
            raise UserError("stop was pressed again")
        answers = await asyncio.gather(*map(self._rearm, self._services()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return "; ".join(dict.fromkeys(map(str, answers)))

    def _repeat(self) -> None:
        with self._lock:
            if self._publisher is not None:
                self._publisher.publish(Bool(data=True))

    def _release(self) -> None:
        with self._lock:
            publisher, self._publisher = self._publisher, None
            if publisher is None:
                return
            publisher.publish(Bool(data=False))
        publisher.wait_for_all_acked(Duration(seconds=FLUSH_S))
        self._node.destroy_publisher(publisher)

    def _services(self) -> list[str]:
        """Return the services that the emergency stop of this topic waits for: those beside it."""
        beside = self._node.resolve_topic_name(TOPIC).rpartition("/")[0]
        return [
            name
            for name, types in self._node.get_service_names_and_types()
            if name.rpartition("/")[2] == SERVICE
            and name.rsplit("/", 2)[0] == beside
            and "std_srvs/srv/Trigger" in types
        ]

    async def _rearm(self, name: str) -> str:
        if name not in self._rearms:
            self._rearms[name] = self._node.create_client(Trigger, name)
        client = self._rearms[name]
        for _ in range(round(ANSWER_S / LOOK_S)):  # until it is discovered
            if client.service_is_ready():
                break
            await asyncio.sleep(LOOK_S)
        return await ask(client, Trigger.Request(), name.rsplit("/", 2)[1])
