"""Offers the memory to ROS: the topic `~/memory`, and services to reset, erase, save and restore.

The services wait for their turn with the network while the node goes on with messages and timers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.task import Future as Answered
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm_policy.control.control_loop import ControlLoop
from ttm_policy.control.recovery import Recovery
from ttm_policy.control.snapshot_file import load_snapshot, save_snapshot
from ttm_policy.network.memory_report import MemoryReport
from ttm_policy.network.worker import Worker
from ttm_policy.qos import LATCHED
from ttm_policy.reset_reply import ResetReply

Serve = Callable[[Trigger.Request, Trigger.Response], Coroutine[Any, Any, Trigger.Response]]


class MemoryInterface:
    """The topic and the services of one policy's memory.

    `reset` empties the memory under an instruction, in the thread of the network. `on_reset` is called
    after each reset with the stamp of the observation that was answered last, so
    that the caller can drop what it received before. `on_restore` is called after each restore.
    """

    def __init__(
        self,
        node: Node,
        loop: ControlLoop,
        worker: Worker,
        snapshot_path: str,
        recovery: Recovery,
        *,
        reset: Callable[[str], None],
        on_reset: Callable[[int], None],
        on_restore: Callable[[], None],
    ):
        self._node, self._loop, self._worker, self._path = node, loop, worker, snapshot_path
        self._recovery = recovery
        self._reset_runner, self._on_reset, self._on_restore = reset, on_reset, on_restore
        self._publisher = node.create_publisher(Float32MultiArray, "~/memory", LATCHED)
        self.report = MemoryReport()
        """The memory after the last call. It never waits for the network."""
        # Reentrant: a service that waits for the network keeps no other callback waiting.
        group = ReentrantCallbackGroup()
        self._services = [
            node.create_service(Trigger, f"~/{name}", self._answering(call), callback_group=group)
            for name, call in (
                ("reset_memory", self._reset),
                ("erase_memory", self._erase),
                ("snapshot_memory", self._snapshot),
                ("restore_memory", self._restore),
            )
        ]

    def publish(self, report: MemoryReport) -> None:
        """Publish the state of the memory after a call."""
        self.report = report
        self._publisher.publish(report.to_message())

    def _reset(self) -> Callable[[], str]:
        """Empty the memory under the instruction in force. The answer is a `ResetReply` as JSON."""
        runner = self._loop.runner
        if not runner.instruction:
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        self._reset_runner(runner.instruction)
        self._loop.for_goal = False
        answered_ns, self._loop.last_stamp_ns = self._loop.last_stamp_ns, 0
        report = MemoryReport.of(runner)

        def then() -> str:
            self._loop.reopen()
            self.publish(report)
            self._on_reset(answered_ns)
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _erase(self) -> Callable[[], str]:
        """Empty the memory alone, in the middle of an episode, to see what the policy does without it.

        Instruction, tick count and previous action stay. The answer is a `ResetReply` as JSON.
        """
        self._loop.runner.erase_memory()
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self.publish(report)
            return ResetReply(report.instruction, report.tick).to_json()

        return then

    def _snapshot(self) -> Callable[[], str]:
        """Save the memory to the file of the parameter `snapshot_path`."""
        save_snapshot(self._path, self._loop.snapshot())
        tick = self._loop.runner.tick
        return lambda: f"saved tick {tick} to {self._path}"

    def _restore(self) -> Callable[[], str]:
        """Continue from the saved memory, tick count, instruction and previous action."""
        self._loop.load(load_snapshot(self._path))
        self._loop.for_goal = False
        report = MemoryReport.of(self._loop.runner)

        def then() -> str:
            self._loop.reopen()
            self.publish(report)
            self._on_restore()
            return f"restored tick {report.tick} from {self._path}"

        return then

    def _answering(self, call: Callable[[], Callable[[], str]]) -> Serve:
        """Return a service that runs `call` in its turn, and then what it returns in the node's thread."""

        async def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            answered: Answered[None] = Answered()

            def conclude(future: Future[Callable[[], str]]) -> None:
                try:
                    response.message, response.success = future.result()(), True
                except UserError as error:
                    response.message, response.success = str(error), False
                    self._node.get_logger().warning(str(error))
                answered.set_result(None)

            self._worker.submit(partial(self._changing, call), conclude)
            await answered
            return response

        return serve

    def _changing(self, call: Callable[[], Callable[[], str]]) -> Callable[[], str]:
        """Run `call` in the thread of the network, and save what it made of the memory."""
        then = call()
        self._recovery.save()
        return then

    def close(self) -> None:
        """Destroy the publisher and the services."""
        self._node.destroy_publisher(self._publisher)
        for service in self._services:
            self._node.destroy_service(service)
