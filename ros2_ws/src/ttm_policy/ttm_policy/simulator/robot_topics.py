"""The topics of a robot that lives by its observations: it publishes them, and collects the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from ttm.policy.spec import PolicySpec
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.conversions import check_fields, ns_to_stamp
from ttm_policy.contract.robot_contract import EXECUTED_ACTION, RobotContract
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import LATCHED
from ttm_policy.sensors.observation_messages import Source, input_types, observation_messages
from ttm_policy.simulator.received_commands import ReceivedCommands

FIRST_STAMP_NS = 1_000_000_000
"""Simulated time at the start. ROS takes 0 for a clock that has not been received yet."""


class RobotTopics(Node):
    """Publishes observations on the topics of a contract, the clock and the instruction.

    `parameters` say which policy answers, and how long it is waited for.
    """

    parameters: SimParameters
    spec: PolicySpec

    def connect_topics(self, contract: RobotContract, spec: PolicySpec, *, whose: str) -> None:
        """Create all topics. Raises `UserError` if the contract does not fit `spec`.

        whose: what `spec` belongs to, for the message.
        """
        check_fields(contract)
        contract.check(spec, whose=whose)
        self.spec, self._contract, self.time_ns = spec, contract, FIRST_STAMP_NS
        self._sensors = {
            topic: self.create_publisher(kind, topic, LATCHED)
            for topic, kind in input_types(contract).items()
        }
        codec = CommandCodec(contract, spec, cmd_vel_stamped=self.parameters.cmd_vel_stamped)
        self.commands = ReceivedCommands(self, codec, lockstep=self.parameters.lockstep)
        self._time = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)

    def next_time_ns(self) -> int:
        """Return the time of the next observation in ns: one tick after the last."""
        return self.time_ns + round(self.spec.control_dt_s * 1e9)

    def publish_observation(
        self, observation: Mapping[str, np.ndarray], executed: np.ndarray, time_ns: int
    ) -> None:
        """Publish all inputs with one stamp, and then the clock.

        executed: (A,), what the robot did since the last one; zeros at the start of an episode.
        time_ns: the stamp.
        """
        self.time_ns = time_ns
        values = {**observation, EXECUTED_ACTION: executed}
        messages = observation_messages(
            self._contract, values, ns_to_stamp(time_ns), complete=self._complete
        )
        for topic, message in messages.items():
            self._sensors[topic].publish(message)
        # The clock comes last: it triggers the policy's tick, which must see this observation.
        self.publish_clock(time_ns)

    def _complete(self, message: Any, source: Source) -> None:
        """Name the frame of a message."""
        message.header.frame_id = source.frame_id or self._contract.base_frame

    def publish_clock(self, time_ns: int) -> None:
        """Publish the time, which also decides when a command expires."""
        self.commands.now_s = time_ns * 1e-9
        self._time.publish(Clock(clock=ns_to_stamp(time_ns)))

    def publish_instruction(self, text: str) -> None:
        """Publish the instruction, which late subscribers receive too."""
        self._instruction.publish(String(data=text))

    def say(self, text: str) -> None:
        """Print a line without delay."""
        print(text, flush=True)
