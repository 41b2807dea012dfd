"""Offers the memory to ROS: the topic `~/memory`, and services to reset, erase, save and restore."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import Float32MultiArray, MultiArrayDimension
from std_srvs.srv import Trigger

from ttm.policy.errors import UserError
from ttm_policy.control.control_loop import ControlLoop
from ttm_policy.control.snapshot_file import load_snapshot, save_snapshot
from ttm_policy.qos import LATCHED
from ttm_policy.reset_reply import ResetReply


class MemoryInterface:
    """The topic and the services of one policy's memory.

    `on_reset` is called after each reset, so that the caller can drop what it received before.
    """

    def __init__(
        self, node: Node, loop: ControlLoop, snapshot_path: str, on_reset: Callable[[], None]
    ):
        self._node, self._loop, self._path, self._on_reset = node, loop, snapshot_path, on_reset
        self._publisher = node.create_publisher(Float32MultiArray, "~/memory", LATCHED)
        self._services = [
            node.create_service(Trigger, f"~/{name}", self._answering(call))
            for name, call in (
                ("reset_memory", self.reset),
                ("erase_memory", self.erase),
                ("snapshot_memory", self.snapshot),
                ("restore_memory", self.restore),
            )
        ]

    def publish(self) -> None:
        """Publish [ticks since the reset, norm of each part of the memory]."""
        norms = [float(norm) for norm in self._loop.runner.memory_norms]
        message = Float32MultiArray(data=[float(self._loop.runner.tick), *norms])
        message.layout.dim = [
            MultiArrayDimension(label="tick", size=1, stride=1 + len(norms)),
            MultiArrayDimension(label="memory_norms", size=len(norms), stride=len(norms)),
        ]
        self._publisher.publish(message)

    def reset(self) -> str:
        """Empty the memory under the instruction in force. Return a `ResetReply` as JSON."""
        instruction = self._loop.runner.instruction
        if not instruction:
            raise UserError("no instruction yet; publish one on the topic `instruction` first")
        self._loop.reset(instruction)
        self._on_reset()
        self.publish()
        return ResetReply(instruction, self._loop.runner.tick).to_json()

    def erase(self) -> str:
        """Empty the memory alone, in the middle of an episode, to see what the policy does without it.

        Instruction, tick count and previous action stay. Return a `ResetReply` as JSON.
        """
        self._loop.runner.erase_memory()
        self.publish()
        return ResetReply(self._loop.runner.instruction or "", self._loop.runner.tick).to_json()

    def snapshot(self) -> str:
        """Save the memory to the file of the parameter `snapshot_path`."""
        save_snapshot(self._path, self._loop.snapshot())
        return f"saved tick {self._loop.runner.tick} to {self._path}"

    def restore(self) -> str:
        """Continue from the saved memory, tick count, instruction and previous action."""
        self._loop.restore(load_snapshot(self._path))
        self.publish()
        return f"restored tick {self._loop.runner.tick} from {self._path}"

    def _answering(
        self, call: Callable[[], str]
    ) -> Callable[[Trigger.Request, Trigger.Response], Trigger.Response]:
        def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            try:
                response.message, response.success = call(), True
            except UserError as error:
                response.message, response.success = str(error), False
                self._node.get_logger().warning(str(error))
            return response

        return serve

    def close(self) -> None:
        """Destroy the publisher and the services."""
        self._node.destroy_publisher(self._publisher)
        for service in self._services:
            self._node.destroy_service(service)
