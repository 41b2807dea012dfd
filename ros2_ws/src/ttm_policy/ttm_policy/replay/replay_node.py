"""The node that plays an episode: it has the topics of the robot that was recorded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ttm.datasets.episode_reader import EpisodeReader
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.parameters import SimParameters
from ttm_policy.replay.stamps import stamps_ns
from ttm_policy.simulator.robot_topics import RobotTopics


class ReplayNode(RobotTopics):
    """Publishes the ticks of an episode one after the other, each at its own stamp."""

    def __init__(self, episode: EpisodeReader, parameters: SimParameters) -> None:
        """Create all topics. Raises `UserError` if contract and episode do not fit together."""
        super().__init__("replay_node")
        self.parameters, self.episode = parameters, episode
        self.stamps_ns = stamps_ns(episode)
        self.connect_topics(load_contract(parameters.contract), episode.spec, whose="the episode")
        self._tick = 0

    def next_time_ns(self) -> int:
        """Return the stamp of the next tick."""
        return int(self.stamps_ns[self._tick])

    def publish_observation(
        self, observation: Mapping[str, np.ndarray], executed: np.ndarray, time_ns: int
    ) -> None:
        """Publish the next tick; see `RobotTopics`."""
        super().publish_observation(observation, executed, time_ns)
        self._tick += 1
