"""What a goal is, and when it ends. It uses no ROS, so that tests can set the time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum

from ttm.policy.errors import UserError


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
