"""Puts instructions into force: those of the topic `instruction`, and those of goals."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from rclpy.node import Node
from std_msgs.msg import String

from ttm.policy.errors import UserError
from ttm_policy.control.control_loop import ControlLoop, LoopState
from ttm_policy.control.memory_interface import MemoryInterface
from ttm_policy.control.recovery import Recovery
from ttm_policy.inputs.topic_text import read_instruction
from ttm_policy.network.memory_report import MemoryReport
from ttm_policy.network.worker import Worker
from ttm_policy.qos import listen

Then = Callable[[str], object]
"""Gets an empty text, or what went wrong."""


class Instructing:
    """Resets the memory under each new instruction. Meanwhile the robot stands still.

    `on_heard` is called when the topic has a new instruction, `on_void` when the one in force is void, and
    `on_begun` with the loop's state before when the new one is in force or cannot be used.
    """

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        worker: Worker,
        recovery: Recovery,
        memory: MemoryInterface,
        *,
        reset: Callable[[str], None],
        on_heard: Callable[[], None],
        on_void: Callable[[], None],
        on_begun: Callable[[LoopState], None],
    ):
        self._node, self._loop, self._worker = node, loop, worker
        self._recovery, self._memory, self._reset_runner = recovery, memory, reset
        self._on_heard, self._on_void, self._on_begun = on_heard, on_void, on_begun
        self.text = loop.runner.instruction or ""
        """The instruction in force, or the one that is being prepared."""
        self._turn = 0
        """Counts instructions, so that only the newest one comes into force."""
        self._listeners = listen(
            node, String, "instruction", lambda message, _: self._on_message(message)
        )

    def _on_message(self, message: String) -> None:
        text = read_instruction(self._node, message)
        if text and text != self.text:
            self._on_heard()
            self.begin(text)

    def begin(self, text: str, then: Then = lambda _: None, *, goal: bool = False) -> None:
        """Stop the robot, and begin an episode under an instruction, be it the same as before.

        The language model may take seconds for a new one. `then` is called when the policy may tick.
        goal: whether this is for a goal.
        """
        self._turn += 1
        self.text = text
        self._on_void()
        self._loop.prepare()
        self._worker.submit(
            partial(self._instruct, text, self._turn, goal),
            partial(self._on_instructed, text, self._turn, then, goal),
        )

    def _instruct(self, text: str, turn: int, goal: bool) -> MemoryReport:
        """Reset the memory under a new instruction; in the thread of the network."""
        runner = self._loop.runner
        if turn == self._turn:  # or else a newer instruction waits already
            try:
                self._reset_runner(text)
                self._loop.for_goal = goal
                self._recovery.save()
            except UserError:
                runner.instruction = None
                raise
        return MemoryReport.of(runner)

    def _on_instructed(
        self, text: str, turn: int, then: Then, goal: bool, future: Future[MemoryReport]
    ) -> None:
        if turn != self._turn:
            then("another instruction has come")
            return
        before, problem = self._loop.state, ""
        try:
            report = future.result()
        except UserError as error:
            self.text, problem = "", str(error)
            self._loop.refuse(problem)
        else:
            self._loop.reopen(goal=goal)
            self._memory.publish(report)
            self._node.get_logger().info(f"new instruction, memory reset: {text}")
        then(problem)
        self._on_begun(before)

    def close(self) -> None:
        """Destroy the subscriptions."""
        for listener in self._listeners:
            self._node.destroy_subscription(listener)
