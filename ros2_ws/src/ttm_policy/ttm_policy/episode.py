"""Begins and ends the episodes of a policy: instructions come into force, the robot stops or rests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ttm.policy.errors import UserError
from ttm_policy.commands import CommandMux
from ttm_policy.control_loop import ControlLoop, LoopState, MemoryReport
from ttm_policy.diagnostics import DiagnosticsTopic, TickRecord
from ttm_policy.inference import Instructions, Worker
from ttm_policy.inputs import Vector
from ttm_policy.memory import MemoryTopic, Recovery


@dataclass
class EpisodeControl:
    """Resets the memory under each new instruction, and stops the robot. It runs no tick.

    What changes the memory runs on the thread of `worker`; all else on that of the node.
    """

    node: Node
    instructions: Instructions
    loop: ControlLoop
    worker: Worker
    recovery: Recovery
    memory: MemoryTopic
    commands: CommandMux
    record: TickRecord
    diagnostics: DiagnosticsTopic
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

        The language model may take seconds for a new one. then: called when the policy may tick with an empty
        text, or else with what went wrong. goal: whether this is for a goal.
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
        self, turn: int, then: Callable[[str], object], goal: bool, future: Future[MemoryReport]
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
        """Let the robot stand still until the next tick, since its command belongs to another memory.

        In lockstep it stands still anyway, and would take this for an answer.
        """
        self.delivered = None
        if self.active and not self.lockstep:
            self.stops += 1
            self.commands.stop()

    def status(self) -> DiagnosticStatus:
        """Return the state for `/diagnostics`."""
        return self.record.status(self.diagnostics.name, active=self.active)

    def report_if_changed(self, before: LoopState) -> None:
        """Log and publish the state of the loop if it is not `before` any more."""
        if self.loop.state is before:
            return
        if (before, self.loop.state) != (LoopState.PAUSED, LoopState.RUNNING):  # no pause is logged
            self.node.get_logger().info(self.loop.description)
        self.diagnostics.publish(self.status())
