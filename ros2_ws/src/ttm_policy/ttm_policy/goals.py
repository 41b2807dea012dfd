"""Episodes, and goals: an instruction that a policy carries out until it says that it is done.

`EpisodeControl` begins and ends the episodes of a policy. `GoalKeeper` accepts and refuses goals as ROS
actions define them, and decides when they end. `GoalInterface` and `GoalAction` offer them to ROS.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Future as Submitted
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError, require_at_least, require_instruction
from ttm_policy.commands import CommandMux
from ttm_policy.control_loop import ControlLoop, LoopState, MemoryReport
from ttm_policy.diagnostics import TickRecord
from ttm_policy.inference import Instructions, Worker
from ttm_policy.inputs import Vector
from ttm_policy.lifecycle import ManagedNode
from ttm_policy.memory import MemoryTopic, Recovery
from ttm_policy.parameters import PolicyParameters
from ttm_policy.qos import LATCHED


@dataclass
class EpisodeControl:
    """Begins and ends episodes: instructions come into force, the robot stops or rests.

    What changes the memory runs on the thread of `worker`; all else on that of the node.
    """

    node: ManagedNode
    instructions: Instructions
    loop: ControlLoop
    worker: Worker
    recovery: Recovery
    memory: MemoryTopic
    commands: CommandMux
    record: TickRecord
    lockstep: bool
    active: bool = False
    """Whether the life cycle lets the policy tick."""
    stops: int = 0
    """Counts stops: the answer to an observation from before a stop is void."""
    delivered: Vector | None = None
    """The command (A,) in force at the last tick of this episode; None before the first."""
    instruction: str = field(init=False)
    """The instruction in force, or the one that is being prepared; or an empty text."""
    _turn: int = 0
    """Counts instructions, so that only the newest one comes into force."""

    def __post_init__(self) -> None:
        self.instruction = self.loop.runner.instruction or ""

    @property
    def obstacle(self) -> str:
        """Why no goal can begin now, or an empty text."""
        if not self.active:
            return "the node is inactive; activate it first"
        if self.lockstep:
            return "in lockstep the simulator begins the episodes; there are no goals"
        return self.loop.description if self.loop.state is LoopState.E_STOP else ""

    def begin(
        self, instruction: str, then: Callable[[str], object] | None = None, *, goal: bool = False
    ) -> None:
        """Stop the robot, and begin an episode under an instruction, be it the same as before.

        then: called when the policy may tick with an empty text, or else with what went wrong.
        """
        self._turn += 1
        self.instruction = instruction
        self.stop_if_active()
        self.loop.prepare()
        self.worker.submit(
            partial(self._reset, instruction, self._turn, goal),
            partial(self._finish_reset, self._turn, then or (lambda _: None), goal),
        )

    def _reset(self, instruction: str, turn: int, goal: bool) -> MemoryReport:
        """Reset the memory under a new instruction; in the thread of the network."""
        runner = self.loop.runner
        if turn == self._turn:  # or else a newer instruction waits already
            try:
                self.instructions.reset(runner, instruction)
                self.loop.for_goal = goal
                self.recovery.save()
            except UserError:
                runner.instruction = None
                raise
        return MemoryReport.of(runner)

    def _finish_reset(
        self, turn: int, then: Callable[[str], object], goal: bool, future: Submitted[MemoryReport]
    ) -> None:
        """Let the policy tick under the new instruction, or wait for another one."""
        if turn != self._turn:
            then("another instruction has come")
            return
        before, problem = self.loop.state, ""
        try:
            report = future.result()
        except UserError as error:
            self.instruction, problem = "", str(error)
            self.loop.refuse(problem)
        else:
            self.loop.begin_episode(goal=goal)
            self.memory.publish(report)
            self.node.get_logger().info(f"new instruction, memory reset: {report.instruction}")
        then(problem)
        self.delivered = None
        self.report_if_changed(before)

    def stop(self) -> None:
        """Send zero now. What the network makes of an observation from before is not sent."""
        self.stops += 1
        self.record.statistics.pause()
        self.commands.stop()
        self.loop.limits.halt()
        if self.delivered is None:
            self.worker.submit(self.loop.stand_still)
        else:
            still = self.loop.limits.stopped(self.delivered)
            self.worker.submit(partial(self.loop.executed, still))

    def stop_if_active(self) -> None:
        """Send zero if the robot is this node's to move."""
        if self.active:
            self.stop()

    def rest(self, why: str) -> None:
        """Stop the robot, and let it stand still until the next goal begins."""
        before = self.loop.state
        self.loop.rest(why)
        self.stop_if_active()
        self.report_if_changed(before)

    def change_memory(self) -> None:
        """Let the robot stand still until the next tick, unless a simulator would take it for an answer."""
        self.delivered = None
        if self.active and not self.lockstep:
            self.stops += 1
            self.commands.stop()

    def report_if_changed(self, before: LoopState) -> None:
        """Log and publish the state of the loop if it is not `before` any more."""
        if self.loop.state is before:
            return
        if (before, self.loop.state) != (LoopState.PAUSED, LoopState.RUNNING):  # no pause is logged
            self.node.get_logger().info(self.loop.description)
        self.node.publish_diagnostics()


class GoalState(str, Enum):
    EXECUTING = "executing"
    SUCCEEDED = "succeeded"
    ABORTED = "aborted"
    CANCELED = "canceled"


@dataclass(frozen=True)
class GoalReport:
    """A goal at one moment: its number from 1 on, and ticks and wall time since its beginning."""

    goal: int
    instruction: str
    state: GoalState = GoalState.EXECUTING
    reason: str = ""
    """Why the goal was aborted."""
    tick: int = 0
    elapsed_s: float = 0.0

    @property
    def over(self) -> bool:
        return self.state is not GoalState.EXECUTING

    @property
    def text(self) -> str:
        """The goal in words, such as `goal 3 aborted: emergency stop`."""
        return f"goal {self.goal} {self.state.value}" + (f": {self.reason}" if self.reason else "")

    def to_json(self) -> str:
        """Return what `~/goal` publishes."""
        return json.dumps(asdict(self), ensure_ascii=False)


class GoalKeeper:
    """At most one goal at a time, from its acceptance to its end.

    Each report goes to everybody in `listeners`: when a goal begins, at each of its ticks and when it ends.
    The robot is stopped before the last report.
    """

    def __init__(self, episode: EpisodeControl, parameters: PolicyParameters, period_s: float):
        """parameters: may be exchanged at any time. period_s: that of the policy's ticks."""
        self._episode, self.parameters, self._period_s = episode, parameters, period_s
        self.listeners: list[Callable[[GoalReport], None]] = []
        self._number = 0
        self._begun_s, self._timeout_s, self._first_tick_by_s = 0.0, 0.0, math.inf
        self._report: GoalReport | None = None
        """The goal that is being executed, or the last one; None before the first."""

    def require_acceptable(self, instruction: str, timeout_s: float = 0.0) -> str:
        """Return the instruction of a goal, the one in force for an empty text. `UserError` refuses it."""
        require_at_least(0, {"timeout_s": timeout_s})
        if obstacle := self._episode.obstacle:
            raise UserError(obstacle)
        if (report := self._executing) is not None and not self.parameters.preempt_goals:
            what = f"goal {report.goal} is being executed ({report.instruction})"
            raise UserError(f"{what}; cancel it first")
        if not (text := require_instruction(instruction) or self._episode.instruction):
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        return text

    def request(self, instruction: str, timeout_s: float = 0.0) -> GoalReport:
        """Begin a goal in place of the one before, and return its first report. `UserError` refuses it.

        timeout_s: when the goal is aborted; 0 for `goal_timeout_s`.
        """
        text = self.require_acceptable(instruction, timeout_s)
        self.abort("another goal takes its place")
        self._number += 1
        self._begun_s, self._first_tick_by_s = time.monotonic(), math.inf
        self._timeout_s = timeout_s or self.parameters.goal_timeout_s
        report = GoalReport(self._number, text)
        self._publish(report)
        self._episode.begin(text, partial(self._prepared, report.goal), goal=True)
        return report

    def _prepared(self, number: int, problem: str) -> None:
        """Let the goal go on, now that the memory is empty, unless it has ended meanwhile."""
        report = self._report
        assert report is not None
        if report.goal != number:
            return
        if report.over:
            self._episode.rest(report.text)
        elif problem := problem or self._episode.obstacle:
            self.abort(problem)
        else:
            patience_s = self.parameters.stop_after_s + 2 * self._period_s
            self._first_tick_by_s = time.monotonic() + patience_s

    def ticked(self, *, done: bool) -> None:
        """Count a tick. done: whether the policy said in it that its task is done."""
        if (report := self._executing) is None:
            return
        self._report = replace(report, tick=report.tick + 1)
        if done:
            self._end(GoalState.SUCCEEDED)
        elif not self._time_is_up():
            self._publish(replace(self._report, elapsed_s=self._elapsed_s()))

    def watch(self, problem: str, waits_for: str) -> None:
        """Abort the goal for a `problem`, and if it is too late. waits_for: why there is no tick now."""
        if (report := self._executing) is None:
            return
        if problem:
            self.abort(problem)
        elif report.tick == 0 and time.monotonic() > self._first_tick_by_s:
            self.abort(f"there was no first tick: {waits_for}")
        else:
            self._time_is_up()

    def abort(self, why: str) -> None:
        """Abort the goal, if there is one."""
        self._end(GoalState.ABORTED, why)

    def cancel(self) -> GoalReport:
        """End the goal at somebody's request, and return its last report. Raises `UserError` without one."""
        if (report := self._end(GoalState.CANCELED)) is None:
            raise UserError("no goal is being executed; to stop the robot, deactivate the node")
        return report

    @property
    def _executing(self) -> GoalReport | None:
        return None if self._report is None or self._report.over else self._report

    def _end(self, state: GoalState, reason: str = "") -> GoalReport | None:
        """End the goal that is being executed, and return its last report; None if there was none."""
        if (report := self._executing) is None:
            return None
        report = replace(report, state=state, reason=reason, elapsed_s=self._elapsed_s())
        self._report = report
        self._episode.rest(report.text)
        self._publish(report)
        return report

    def _publish(self, report: GoalReport) -> None:
        self._report = report
        for listener in self.listeners:
            listener(report)

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._begun_s, 3)

    def _time_is_up(self) -> bool:
        """Abort the goal if it has taken too long, and return whether it had."""
        if not self._timeout_s or self._elapsed_s() < self._timeout_s:
            return False
        self.abort(f"not done within {self._timeout_s:g} s")
        return True


PACKAGE = "ttm_policy_msgs"
"""The package of the action's type, which is there only where colcon has built the workspace."""


class GoalAction:
    """The action server of a `GoalKeeper`. A goal that is refused is rejected; the log says why."""

    def __init__(self, node: Node, keeper: GoalKeeper, kind: Any):
        """kind: the type of the action."""
        self._node, self._keeper, self._kind = node, keeper, kind
        self._running: dict[int, tuple[Any, Future[GoalReport]]] = {}
        """Number of a goal -> its handle, and its last report."""
        keeper.listeners.append(self._on_report)
        calls = {"goal_callback": self._accept, "cancel_callback": self._cancel}
        ActionServer(node, kind, "~/execute_instruction", self._execute, **calls)

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
        last = await ended
        if last.state is GoalState.SUCCEEDED:
            handle.succeed()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return self._kind.Result(message=last.text, ticks=last.tick, elapsed_s=last.elapsed_s)

    def _on_report(self, report: GoalReport) -> None:
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


class GoalInterface:
    """Offers the goals of a `GoalKeeper` by services, a topic and, where its type has been built, an action.

    `~/start` begins a goal under the instruction in force. The services answer with a report as JSON, or with
    the reason for which they refuse.
    """

    def __init__(self, node: Node, keeper: GoalKeeper):
        publisher = node.create_publisher(String, "~/goal", LATCHED)
        keeper.listeners.append(lambda each: publisher.publish(String(data=each.to_json())))
        for name, call in (("start", partial(keeper.request, "")), ("cancel", keeper.cancel)):
            node.create_service(Trigger, f"~/{name}", partial(self._serve, call))
        if find_spec(PACKAGE) is not None:
            GoalAction(node, keeper, import_module(f"{PACKAGE}.action").ExecuteInstruction)

    def _serve(
        self, call: Callable[[], GoalReport], _: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        try:
            response.message, response.success = call().to_json(), True
        except UserError as error:
            response.message, response.success = str(error), False
        return response
