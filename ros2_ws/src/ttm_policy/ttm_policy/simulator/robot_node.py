"""The ROS node of a simulated robot, which publishes observations and receives commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float32MultiArray, String

from ttm.sim.environment import Env, spec_of
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import (
    MESSAGE_TYPES,
    check_fields,
    frame_to_image,
    ns_to_stamp,
    write_vector,
)
from ttm_policy.contract.robot_contract import EXECUTED_ACTION, ImageSource, VectorSource
from ttm_policy.declare import declare_parameters, read_parameters
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import LATCHED
from ttm_policy.simulator.display import RobotDisplay
from ttm_policy.simulator.received_commands import ReceivedCommands

FIRST_STAMP_NS = 1_000_000_000
"""Simulated time at the start. ROS takes 0 for a clock that has not been received yet."""


class SimNode(Node):
    """Publishes observations on the topics of a contract, and collects the commands."""

    def __init__(self) -> None:
        """Declare and read the parameters. Raises `UserError` if one is out of range."""
        super().__init__("sim_node")
        declare_parameters(self, SimParameters)
        self.parameters = read_parameters(self, SimParameters)
        self.time_ns = FIRST_STAMP_NS
        self.memory = np.zeros(0, dtype=np.float32)

    def connect(self, env: Env) -> None:
        """Create all topics for `env`. Raises `UserError` if the contract does not fit it."""
        self.spec = spec_of(env)
        contract = load_contract(self.parameters.contract)
        check_fields(contract)
        contract.check(self.spec, whose="the simulator")
        self._sources = contract.inputs
        self._sensors = {
            s.name: self.create_publisher(MESSAGE_TYPES[s.type], s.topic, LATCHED)
            for s in self._sources
        }
        codec = CommandCodec(contract, self.spec, cmd_vel_stamped=self.parameters.cmd_vel_stamped)
        self.commands = ReceivedCommands(self, codec, lockstep=self.parameters.lockstep)
        self._display = RobotDisplay(self, env, self.spec, contract)
        self._clock = self.create_publisher(Clock, "/clock", 10)
        self._instruction = self.create_publisher(String, "instruction", LATCHED)
        self._episode = self.create_publisher(String, "~/episode", LATCHED)
        self.create_subscription(
            Float32MultiArray, f"{self.parameters.policy_node}/memory", self._on_memory, LATCHED
        )

    def _on_memory(self, message: Float32MultiArray) -> None:
        self.memory = np.array(message.data, dtype=np.float32)

    def describe_memory(self) -> str:
        """Return the number of memory writes in this episode and the norm of the memory."""
        writes, norm = (
            (self.memory[0], np.linalg.norm(self.memory[1:])) if self.memory.size else (0, 0)
        )
        return f"memory writes {writes:4.0f}  norm {norm:8.3f}"

    def publish_clock(self, time_ns: int) -> None:
        """Publish the simulated time, which also decides when a command expires."""
        self.commands.now_s = time_ns * 1e-9
        self._clock.publish(Clock(clock=ns_to_stamp(time_ns)))

    def next_time_ns(self) -> int:
        """Return the simulated time one tick after the last observation, ns."""
        return self.time_ns + round(self.spec.control_dt_s * 1e9)

    def publish_observation(
        self, observation: Mapping[str, np.ndarray], executed: np.ndarray, time_ns: int
    ) -> None:
        """Publish all inputs with one stamp, and the robot as visualisers see it.

        executed: (A,), what the robot did since the last one; zeros at the start of an episode.
        time_ns: the stamp.
        """
        self.time_ns = time_ns
        stamp = ns_to_stamp(time_ns)
        values = {**observation, EXECUTED_ACTION: executed}
        self._display.begin_tick()
        for source in self._sources:
            self._sensors[source.name].publish(self._message(source, values[source.name], stamp))
        self._display.publish(stamp)
        # The clock comes last: it triggers the policy's tick, which must see this observation.
        self.publish_clock(time_ns)

    def _message(self, source: ImageSource | VectorSource, values: np.ndarray, stamp: Time) -> Any:
        if isinstance(source, ImageSource):
            message = frame_to_image(values, source, stamp)
            message.header.frame_id = self._display.frame_of(source)
            return message
        message = MESSAGE_TYPES[source.type]()
        self._display.complete(message, source)
        message.header.stamp = stamp
        write_vector(message, source, values)
        return message

    def publish_instruction(self, text: str) -> None:
        """Publish the instruction, which late subscribers receive too."""
        self._instruction.publish(String(data=text))

    def publish_episode(self, info: Mapping[str, Any]) -> None:
        """Publish the state of the episode as JSON on `~/episode`."""
        self._episode.publish(String(data=episode_json(info)))

    def say(self, text: str) -> None:
        """Print a line without delay."""
        print(text, flush=True)


def episode_json(info: Mapping[str, Any]) -> str:
    """Return an environment's `info` as JSON.

    Arrays and scalars of NumPy become lists and numbers. What JSON does not know becomes text.
    """
    return json.dumps(dict(info), default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
