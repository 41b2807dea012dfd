"""Goals by standard messages: the services `~/start` and `~/cancel`, and the topic `~/goal`."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm_policy.goals.goal import GoalReport
from ttm_policy.goals.goal_keeper import GoalKeeper
from ttm_policy.qos import LATCHED


class GoalServices:
    """Offers the goals of a `GoalKeeper`. A service that succeeds answers with a report as JSON.

    `~/start` begins a goal under the instruction in force.
    """

    def __init__(self, node: Node, keeper: GoalKeeper):
        self._node, self._keeper = node, keeper
        self._publisher = node.create_publisher(String, "~/goal", LATCHED)
        keeper.listeners.append(self._publish)
        calls = {"start": lambda: keeper.request(""), "cancel": keeper.cancel}
        self._services = [
            node.create_service(Trigger, f"~/{name}", _answering(call))
            for name, call in calls.items()
        ]

    def _publish(self, report: GoalReport) -> None:
        self._publisher.publish(String(data=report.to_json()))

    def close(self) -> None:
        """Destroy the services and the topic."""
        self._keeper.listeners.remove(self._publish)
        self._node.destroy_publisher(self._publisher)
        for service in self._services:
            self._node.destroy_service(service)


def _answering(
    call: Callable[[], GoalReport],
) -> Callable[[Trigger.Request, Trigger.Response], Trigger.Response]:
    """Return a service that answers with the report that `call` returns, or with why it is refused."""

    def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            response.message, response.success = call().to_json(), True
        except UserError as error:
            response.message, response.success = str(error), False
        return response

    return serve
