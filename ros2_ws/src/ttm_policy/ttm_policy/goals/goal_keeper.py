"""Takes requests for goals, whoever makes them, and has them carried out by a policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ttm.policy.checks import require_at_least, require_instruction
from ttm.policy.errors import UserError
from ttm_policy.goals.goal import GoalReport, Goals, GoalState, OnReport
from ttm_policy.parameters import PolicyParameters


class Instructing(Protocol):
    """What puts instructions into force, as `ttm_policy.control.instructing` does."""

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
