"""All ways in which ROS reaches the goals of a policy."""

from __future__ import annotations

from rclpy.node import Node

from ttm_policy.goals.goal_action import GoalAction, action_type
from ttm_policy.goals.goal_keeper import GoalKeeper
from ttm_policy.goals.goal_services import GoalServices


class GoalInterface:
    """The services and the topic of goals and, where its type has been built, the action."""

    def __init__(self, node: Node, keeper: GoalKeeper):
        self._services = GoalServices(node, keeper)
        kind = action_type()
        self._action = None if kind is None else GoalAction(node, keeper, kind)

    def close(self) -> None:
        """Destroy everything."""
        self._services.close()
        if self._action is not None:
            self._action.close()
