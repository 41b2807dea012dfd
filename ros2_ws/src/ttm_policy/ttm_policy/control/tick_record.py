"""Keeps account of a session's ticks for `/diagnostics`."""

from __future__ import annotations

import time

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ttm_policy.control.control_loop import ControlLoop, PolicyTick
from ttm_policy.control.diagnostics import PolicyFacts, policy_status
from ttm_policy.control.helm import Helm
from ttm_policy.control.memory_interface import MemoryInterface
from ttm_policy.control.thought import Question, Thought
from ttm_policy.inputs.inputs import Inputs
from ttm_policy.supervision.tick_statistics import TickStatistics


class TickRecord:
    """Gathers what a session knows about its ticks, its inputs and its memory."""

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        inputs: Inputs,
        memory: MemoryInterface,
        commands: Helm,
        *,
        after_crash: str = "",
    ):
        """after_crash: what the robot will do if the process crashes, in words."""
        self._node, self._loop, self._inputs = node, loop, inputs
        self._memory, self._commands, self._after_crash = memory, commands, after_crash
        self._network_s = self._told_delay_s = 0.0
        self.statistics = TickStatistics(loop.runner.spec.control_dt_s)

    def begun(self, question: Question, now_ns: int) -> float:
        """Count a tick that begins. Return how late its command will be in force, in seconds.

        That is the age of its oldest input and what the last ticks took from their beginning until their
        commands were sent. In lockstep the simulator waits, and nothing is late.
        """
        self.statistics.begin(question.wall_s)
        age_s = (now_ns - question.observation.oldest_ns) * 1e-9
        late = not self._inputs.lockstep
        self._told_delay_s = age_s + self.statistics.recent_tick_s if late else 0.0
        return self._told_delay_s

    def answered(self, tick: PolicyTick, question: Question, thought: Thought) -> None:
        """Count a tick whose command was sent just now."""
        now_ns = self._node.get_clock().now().nanoseconds
        latency_s = (now_ns - question.observation.oldest_ns) * 1e-9
        self.statistics.answer(question.wall_s, time.monotonic(), latency_s)
        self._network_s = thought.seconds
        for name, where in self._loop.runner.spec.action_slices.items():
            if not np.array_equal(tick.action[where], tick.command[where]):
                self.statistics.limits_hit[name] += 1

    def status(self, name: str, *, active: bool) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        facts = PolicyFacts(
            active=active,
            memory=self._memory.report,
            memory_age_s=self.statistics.memory_age_s(time.monotonic()),
            network_s=self._network_s,
            told_delay_s=min(self._told_delay_s, self._loop.runner.policy.config.longest_delay_s),
            ticks=self.statistics,
            input_ages_s=self._inputs.ages_s(self._node.get_clock().now().nanoseconds),
            expired=self._commands.expired,
            person=self._commands.person,
            person_problem=self._commands.problem,
            after_crash=self._after_crash,
        )
        return policy_status(name, self._loop, facts)
