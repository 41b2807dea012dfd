"""Goals as a ROS action, `~/execute_instruction`, where its type has been built.

No package of PyPI has an action type with a text in it, and types of our own have to be built. That of
`ros2_ws/src/ttm_policy_msgs` is, wherever colcon builds the workspace.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.node import Node
from rclpy.task import Future

from ttm.policy.errors import UserError
from ttm_policy.goals.goal import GoalReport, GoalState
from ttm_policy.goals.goal_keeper import GoalKeeper

PACKAGE = "ttm_policy_msgs"


def action_type() -> Any:
    """Return the type of the action, or None if its package has not been built."""
    if find_spec(PACKAGE) is None:
        return None
    return import_module(f"{PACKAGE}.action").ExecuteInstruction


class GoalAction:
    """The action server of a `GoalKeeper`.

    A goal that is refused, for instance because the node is inactive, is rejected, and the log says why.
    """

    def __init__(self, node: Node, keeper: GoalKeeper, kind: Any):
        """kind: what `action_type` returned."""
        self._node, self._keeper, self._kind = node, keeper, kind
        self._running: dict[int, tuple[Any, Future[GoalReport]]] = {}
        """Number of a goal -> its handle, and its last report."""
        keeper.listeners.append(self._tell)
        self._server: ActionServer[Any, Any, Any] = ActionServer(
            node,
            kind,
            "~/execute_instruction",
            execute_callback=self._execute,
            goal_callback=self._accept,
            cancel_callback=self._cancel,
        )

    def _accept(self, request: Any) -> GoalResponse:
        try:
            self._keeper.require_acceptable(request.instruction, request.timeout_s)
        except UserError as error:
            self._node.get_logger().warning(f"a goal is rejected: {error}")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    async def _execute(self, handle: Any) -> Any:
        """Return the result of a goal when it has ended."""
        ended: Future[GoalReport] = Future()
        try:
            report = self._keeper.request(handle.request.instruction, handle.request.timeout_s)
        except UserError as error:  # something has come in between
            handle.abort()
            return self._kind.Result(message=str(error))
        self._running[report.goal] = handle, ended
        return self._result(handle, await ended)

    def _result(self, handle: Any, last: GoalReport) -> Any:
        if last.state is GoalState.SUCCEEDED:
            handle.succeed()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return self._kind.Result(message=last.text, ticks=last.tick, elapsed_s=last.elapsed_s)

    def _tell(self, report: GoalReport) -> None:
        """Publish feedback, or end the goal of a handle."""
        if report.goal not in self._running:
            return
        handle, ended = self._running[report.goal]
        if report.over:
            del self._running[report.goal]
            ended.set_result(report)
        else:
            feedback = self._kind.Feedback(tick=report.tick, elapsed_s=report.elapsed_s)
            handle.publish_feedback(feedback)

    def _cancel(self, handle: Any) -> CancelResponse:
        if all(handle is not running for running, _ in self._running.values()):
            return CancelResponse.REJECT
        self._keeper.cancel()
        return CancelResponse.ACCEPT

    def close(self) -> None:
        """Destroy the action server."""
        self._keeper.listeners.remove(self._tell)
        self._server.destroy()
