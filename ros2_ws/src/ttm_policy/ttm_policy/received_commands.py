"""The commands that a simulated robot has received: the answer to one observation, or what is in force now."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory

from ttm_policy.commands import CommandCodec
from ttm_policy.conversions import stamp_to_ns
from ttm_policy.quality import COMMAND, LATCHED

COMMAND_TIMEOUT_S = 0.4
"""A twist that is not renewed within this time is over, as on base controllers and MoveIt Servo."""


class ReceivedCommands:
    """Subscribes to all command topics of a `CommandCodec`."""

    def __init__(self, node: Node, codec: CommandCodec, *, lockstep: bool):
        self._codec = codec
        self._expected_ns = 0
        self._answers: dict[str, Any] = {}
        self._newest: dict[str, tuple[Any, float]] = {}
        self.now_s = 0.0
        for topic, kind in codec.types().items():
            node.create_subscription(
                kind, topic, self._receiver(topic), LATCHED if lockstep else COMMAND
            )

    def _receiver(self, topic: str) -> Any:
        def receive(message: Any) -> None:
            self._newest[topic] = message, self.now_s
            # Those without a stamp (Twist, Bool) are sent once a tick: the next one is the answer.
            if (
                not hasattr(message, "header")
                or stamp_to_ns(message.header.stamp) == self._expected_ns
            ):
                self._answers[topic] = message

        return receive

    def expect(self, stamp_ns: int) -> None:
        """From now on only commands for the observation of this stamp are answers."""
        self._answers.clear()
        self._expected_ns = stamp_ns

    def missing(self) -> list[str]:
        """Topics on which the answer has not come."""
        return [topic for topic in self._codec.sinks if topic not in self._answers]

    def answer(self) -> npt.NDArray[np.float32]:
        """The complete action (A,) for the observation that was expected."""
        return self._codec.decode(self._answers)

    def in_force(self) -> npt.NDArray[np.float32]:
        """The action (A,) that a robot would carry out now: joint goals last, all other commands run out."""
        alive = {
            topic: message
            for topic, (message, received_s) in self._newest.items()
            if isinstance(message, JointTrajectory) or self.now_s - received_s <= COMMAND_TIMEOUT_S
        }
        return self._codec.decode(alive)
