"""The ROS node of a simulated robot, which publishes observations and receives commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from std_msgs.msg import Float32MultiArray, String

from ttm.sim.environment import Env, spec_of
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import ns_to_stamp
from ttm_policy.declare import declare_parameters, read_parameters
from ttm_policy.parameters import SimParameters
from ttm_policy.qos import LATCHED
from ttm_policy.sensors.observation_messages import Source
from ttm_policy.simulator.display import RobotDisplay
from ttm_policy.simulator.robot_topics import RobotTopics


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
