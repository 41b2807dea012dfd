"""Takes requests for goals, whoever makes them, and has them carried out by a policy."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError, require_at_least, require_instruction
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import LATCHED

# What a goal is, and when it ends. It uses no ROS, so that tests can set the time.


class GoalState(str, Enum):
    """The states of a goal, named as those of ROS actions."""

    EXECUTING = "executing"
    SUCCEEDED = "succeeded"
    ABORTED = "aborted"
    CANCELED = "canceled"


@dataclass(frozen=True)
class GoalReport:
    """A goal at one moment."""

    goal: int
    """The number of the goal, from 1 on."""
    instruction: str
    state: GoalState = GoalState.EXECUTING
    reason: str = ""
    """Why the goal was aborted."""
    tick: int = 0
    """Ticks since its beginning."""
    elapsed_s: float = 0.0
    """Wall time since its beginning."""

    @property
    def over(self) -> bool:
        """Whether the goal has ended."""
        return self.state is not GoalState.EXECUTING

    @property
    def text(self) -> str:
        """The goal in words, such as `goal 3 aborted: emergency stop`."""
        return f"goal {self.goal} {self.state.value}" + (f": {self.reason}" if self.reason else "")

    def to_json(self) -> str:
        """Return what `~/goal` publishes."""
        return json.dumps(asdict(self), ensure_ascii=False)


OnReport = Callable[[GoalReport], None]


class Goals:
    """At most one goal at a time, and what becomes of it.

    `on_report` is called when a goal begins, at each of its ticks and when it ends. `on_end` is called before
    the last report, in order to stop the robot. All times are those of a steady clock, in seconds.
    """

    def __init__(self, on_report: OnReport, on_end: OnReport):
        self._on_report, self._on_end = on_report, on_end
        self._number = 0
        self._begun_s, self._timeout_s, self._first_tick_by_s = 0.0, 0.0, math.inf
        self.report: GoalReport | None = None
        """The goal that is being executed, or the last one; None before the first."""

    @property
    def executing(self) -> bool:
        """Whether a goal is being executed."""
        return self.report is not None and not self.report.over

    def require_free(self, *, preempt: bool) -> None:
        """Raise `UserError` if another goal is in the way."""
        if self.executing and not preempt:
            assert self.report is not None
            raise UserError(
                f"goal {self.report.goal} is being executed ({self.report.instruction}); cancel it "
                "first, or set preempt_goals"
            )

    def begin(self, instruction: str, now_s: float, *, timeout_s: float = 0.0) -> GoalReport:
        """Begin a goal in place of the one before, and return its first report.

        timeout_s: when it is aborted; 0 for never.
        """
        self.end(GoalState.ABORTED, now_s, "another goal takes its place")
        self._number += 1
        self._begun_s, self._timeout_s, self._first_tick_by_s = now_s, timeout_s, math.inf
        self.report = GoalReport(self._number, instruction)
        self._on_report(self.report)
        return self.report

    def expect_tick(self, by_s: float) -> None:
        """Abort the goal if it has had no tick at that time: its memory is ready for the first one."""
        self._first_tick_by_s = by_s

    def ticked(self, *, done: bool, now_s: float) -> None:
        """Count a tick. done: whether the policy said in it that its task is done."""
        if self.report is None or self.report.over:
            return
        self.report = replace(self.report, tick=self.report.tick + 1)
        if done:
            self.end(GoalState.SUCCEEDED, now_s)
        elif not self._time_is_up(now_s):
            self.report = replace(self.report, elapsed_s=self._elapsed_s(now_s))
            self._on_report(self.report)

    def watch(self, now_s: float, problem: str, waits_for: str) -> None:
        """Abort the goal if it has no more prospect.

        problem: what ends it, or an empty text. waits_for: why there is no tick now.
        """
        if self.report is None or self.report.over:
            return
        if problem:
            self.end(GoalState.ABORTED, now_s, problem)
        elif self.report.tick == 0 and now_s > self._first_tick_by_s:
            self.end(GoalState.ABORTED, now_s, f"there was no first tick: {waits_for}")
        else:
            self._time_is_up(now_s)

    def end(self, state: GoalState, now_s: float, reason: str = "") -> bool:
        """End the goal that is being executed, and return whether there was one."""
        if self.report is None or self.report.over:
            return False
        elapsed_s = self._elapsed_s(now_s)
        self.report = replace(self.report, state=state, reason=reason, elapsed_s=elapsed_s)
        self._on_end(self.report)
        self._on_report(self.report)
        return True

    def _elapsed_s(self, now_s: float) -> float:
        return round(now_s - self._begun_s, 3)

    def _time_is_up(self, now_s: float) -> bool:
        """Abort the goal if it has taken too long, and return whether it had."""
        if not self._timeout_s or self._elapsed_s(now_s) < self._timeout_s:
            return False
        return self.end(GoalState.ABORTED, now_s, f"not done within {self._timeout_s:g} s")


class Instructing(Protocol):
    """What puts instructions into force, as `ttm_policy.session` does."""

    text: str
    """The instruction in force, or an empty text."""

    def begin(self, text: str, then: Callable[[str], object], *, goal: bool) -> None:
        """Stop the robot, reset the memory under an instruction, and let the policy tick.

        then: called when that is done, with an empty text or what went wrong.
        """


@dataclass
class GoalRules:
    """What holds for all goals. The values may change at any time."""

    preempt: bool
    """Whether a new goal takes the place of the one that is being executed."""
    timeout_s: float
    """When a goal is aborted that names no time itself; 0 for never."""
    first_tick_s: float
    """The longest wait for the first tick, once the memory is ready for it."""

    @classmethod
    def of(cls, parameters: PolicyParameters, period_s: float) -> GoalRules:
        """Return the rules of a node's parameters. period_s: that of the policy's ticks."""
        first_tick_s = parameters.stop_after_s + 2 * period_s
        return cls(parameters.preempt_goals, parameters.goal_timeout_s, first_tick_s)


class GoalKeeper:
    """Accepts and refuses goals, and tells everybody in `listeners` what becomes of them.

    `obstacle` returns why no goal can begin now, or an empty text. `rest` stops the robot, which then stands
    still until the next goal begins.
    """

    def __init__(
        self,
        instructing: Instructing,
        rules: GoalRules,
        *,
        obstacle: Callable[[], str],
        rest: Callable[[str], None],
    ):
        self._instructing, self._obstacle, self._rest = instructing, obstacle, rest
        self.rules = rules
        self._goals = Goals(self._tell, lambda report: rest(report.text))
        self.listeners: list[OnReport] = []

    def _tell(self, report: GoalReport) -> None:
        for listener in self.listeners:
            listener(report)

    def require_acceptable(self, instruction: str, timeout_s: float = 0.0) -> str:
        """Return the instruction of a goal, in its final form. Raises `UserError` to refuse the goal."""
        require_at_least(0, {"timeout_s": timeout_s})
        if obstacle := self._obstacle():
            raise UserError(obstacle)
        self._goals.require_free(preempt=self.rules.preempt)
        if not (text := require_instruction(instruction) or self._instructing.text):
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        return text

    def request(self, instruction: str, timeout_s: float = 0.0) -> GoalReport:
        """Begin a goal, and return its first report. Raises `UserError` if it is refused.

        instruction: an empty text for the one in force. timeout_s: 0 for that of the rules.
        """
        text = self.require_acceptable(instruction, timeout_s)
        timeout_s = timeout_s or self.rules.timeout_s
        report = self._goals.begin(text, time.monotonic(), timeout_s=timeout_s)
        self._instructing.begin(text, partial(self._prepared, report.goal), goal=True)
        return report

    def _prepared(self, number: int, problem: str) -> None:
        """Let the goal go on, now that the memory is empty, unless it has ended meanwhile."""
        report = self._goals.report
        assert report is not None
        if report.goal != number:
            return
        if report.over:
            self._rest(report.text)
        elif problem := problem or self._obstacle():
            self.abort(problem)
        else:
            self._goals.expect_tick(by_s=time.monotonic() + self.rules.first_tick_s)

    def ticked(self, *, done: bool) -> None:
        """Count a tick. done: whether the policy said in it that its task is done."""
        self._goals.ticked(done=done, now_s=time.monotonic())

    def watch(self, problem: str, waits_for: str) -> None:
        """Abort the goal if it has no more prospect; see `Goals.watch`."""
        self._goals.watch(time.monotonic(), problem, waits_for)

    def abort(self, why: str) -> None:
        """Abort the goal, if there is one."""
        self._goals.end(GoalState.ABORTED, time.monotonic(), why)

    def cancel(self) -> GoalReport:
        """End the goal at somebody's request, and return its last report. Raises `UserError` without one."""
        if not self._goals.end(GoalState.CANCELED, time.monotonic()):
            raise UserError("no goal is being executed; to stop the robot, deactivate the node")
        assert self._goals.report is not None
        return self._goals.report


# Goals as a ROS action, `~/execute_instruction`, where its type has been built.
#
# No package of PyPI has an action type with a text in it, and types of our own have to be built. That of
# `ros2_ws/src/ttm_policy_msgs` is, wherever colcon builds the workspace.

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


# Goals by standard messages: the services `~/start` and `~/cancel`, and the topic `~/goal`.


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


# All ways in which ROS reaches the goals of a policy.


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
