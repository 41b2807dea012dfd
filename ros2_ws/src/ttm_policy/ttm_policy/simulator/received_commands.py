"""Collects the commands that a simulated robot receives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory

from ttm.policy.errors import UserError
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.conversions import stamp_to_ns
from ttm_policy.contract.robot_contract import MOTION_TYPES
from ttm_policy.inputs.topic_text import WARN_EVERY_S
from ttm_policy.qos import LATCHED, NEWEST

COMMAND_TIMEOUT_S = 0.3
"""Simulated time after which a twist expires, as on base controllers and MoveIt Servo. Half a second
after the last command the odometry of a base that is simulated in ticks of 0.2 s says that it stands."""


class ReceivedCommands:
    """Subscribes to all command topics of a `CommandCodec`.

    `now_s` is the simulated time in seconds, as published last.
    """

    def __init__(self, node: Node, codec: CommandCodec, *, lockstep: bool):
        self._node, self._codec = node, codec
        self._expected_ns = 0
        self._answers: dict[str, Any] = {}
        self._newest: dict[str, tuple[Any, float]] = {}
        self.now_s = 0.0
        self.resting = np.zeros(codec.spec.action_size, np.float32)
        """(A,), the action that leaves the robot in its place, for parts that no command is in force of."""
        for topic, kind in codec.types().items():
            node.create_subscription(
                kind, topic, self._receiver(topic), LATCHED if lockstep else NEWEST
            )

    def _receiver(self, topic: str) -> Any:
        def receive(message: Any) -> None:
            try:
                self._codec.decode({topic: message})
            except UserError as error:
                self._node.get_logger().warning(
                    f"{error}; it is not carried out", throttle_duration_sec=WARN_EVERY_S
                )
                return
            self._newest[topic] = message, self.now_s
            # Messages without a stamp (Twist, Bool) are sent once per tick: the next is the answer.
            if (
                not hasattr(message, "header")
                or stamp_to_ns(message.header.stamp) == self._expected_ns
            ):
                self._answers[topic] = message

        return receive

    def expect(self, stamp_ns: int) -> None:
        """Accept only commands for the observation of this stamp as answers from now on."""
        self._answers.clear()
        self._expected_ns = stamp_ns

    def missing(self) -> list[str]:
        """Return the topics on which the answer has not arrived."""
        return [topic for topic in self._codec.sinks if topic not in self._answers]

    def answer(self) -> npt.NDArray[np.float32]:
        """Return the complete action (A,) that answers the expected observation."""
        return self._codec.decode(self._answers)

    def in_force(self) -> npt.NDArray[np.float32]:
        """Return the action (A,) that a robot would carry out now.

        Joint goals stay in force; other commands expire. Parts without a command are those of `resting`.
        """
        alive = {
            topic: message
            for topic, (message, received_s) in self._newest.items()
            if isinstance(message, JointTrajectory) or self.now_s - received_s <= COMMAND_TIMEOUT_S
        }
        return self._codec.decode(alive, self.resting)

    def standing_still(self) -> npt.NDArray[np.float32]:
        """Return the action (A,) of velocities 0, which leaves all joints where they were sent."""
        action = self.in_force()
        for sinks in self._codec.sinks.values():
            for sink in sinks:
                if sink.type in MOTION_TYPES:
                    action[self._codec.spec.action_slices[sink.name]] = 0.0
        return action
