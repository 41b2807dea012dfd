"""The ROS node of a simulated robot, which publishes observations and receives commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float32MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm.sim.environment import Env, spec_of
from ttm_policy.contract import EXECUTED_ACTION, MOTION_TYPES, RobotContract, load_contract
from ttm_policy.inputs import WARN_EVERY_S
from ttm_policy.messages import (
    CommandCodec,
    Source,
    check_fields,
    input_types,
    ns_to_stamp,
    observation_messages,
    stamp_to_ns,
)
from ttm_policy.node_parameters import declare_parameters, read_parameters
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import LATCHED, NEWEST
from ttm_policy.simulator.display import RobotDisplay

# Collects the commands that a simulated robot receives.

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


# The topics of a robot that lives by its observations: it publishes them, and collects the commands.

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


class SimNode(RobotTopics):
    """Publishes observations on the topics of a contract, and collects the commands."""

    def __init__(self) -> None:
        """Declare and read the parameters. Raises `UserError` if one is out of range."""
        super().__init__("sim_node")
        declare_parameters(self, SimParameters)
        self.parameters = read_parameters(self, SimParameters)
        self.memory = np.zeros(0, dtype=np.float32)

    def connect(self, env: Env) -> None:
        """Create all topics for `env`. Raises `UserError` if the contract does not fit it."""
        contract = load_contract(self.parameters.contract)
        self.connect_topics(contract, spec_of(env), whose="the simulator")
        self._display = RobotDisplay(self, env, self.spec, contract)
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

    def publish_observation(
        self, observation: Mapping[str, np.ndarray], executed: np.ndarray, time_ns: int
    ) -> None:
        """Publish the robot as visualisers see it too; see `RobotTopics`."""
        self._display.begin_tick()
        self._display.publish(ns_to_stamp(time_ns))
        super().publish_observation(observation, executed, time_ns)

    def _complete(self, message: Any, source: Source) -> None:
        self._display.complete(message, source)

    def publish_episode(self, info: Mapping[str, Any]) -> None:
        """Publish the state of the episode as JSON on `~/episode`."""
        self._episode.publish(String(data=episode_json(info)))


def episode_json(info: Mapping[str, Any]) -> str:
    """Return an environment's `info` as JSON.

    Arrays and scalars of NumPy become lists and numbers. What JSON does not know becomes text.
    """
    return json.dumps(dict(info), default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
