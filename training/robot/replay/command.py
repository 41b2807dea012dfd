"""The options of `ttm data play`, with those that need ROS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ttm.datasets.play.command import DataPlayCommand
from ttm.policy.errors import UserError


@dataclass(frozen=True)
class PlayCommand(DataPlayCommand):
    """Write an episode as a film in real time: its cameras, and below them what it did and felt.

    Each part of the action and each vector of proprioception has a chart over the ticks, in which a line
    marks the tick that is shown. A dashed line is what was executed in place of the action. With a name
    that ends in .rrd or .mcap, write it for the viewers of rerun or Foxglove instead. With --topics,
    publish it as the messages of the recorded robot; this needs ROS 2, from pip or installed.

    For example:
      ttm data play my_episodes/episode_00003.hdf5
      ttm data play week.hdf5 --demo demo_12 --out demo_12.webp
      ttm data play my_episodes/episode_00003.hdf5 --out episode.rrd
      ttm data play my_episodes/episode_00003.hdf5 --topics --contract my_robot.yaml
    """

    topics: bool = False
    """Publish the observations, the instruction and /clock on the topics of --contract, at the stamps of
    the episode, instead of writing a film. Nothing is commanded."""

    contract: Path | None = None
    """With --topics, the YAML file of the robot's topics. None takes that of the simulated robot."""

    lockstep: bool = False
    """With --topics, empty the memory of policy_node, which must run with lockstep:=true, and publish
    each tick when the policy has answered the one before. At the end, tell how many of its commands are
    the recorded actions, bit by bit. Otherwise ticks come at their own pace, whoever listens."""

    def run(self) -> int:
        """Write the film, or play the topics; return the exit code."""
        if not self.topics:
            if self.contract is not None or self.lockstep:
                raise UserError("--contract and --lockstep are for --topics; add it")
            return super().run()
        if self.out is not None:
            raise UserError("--topics writes no file; leave out --out")
        from ttm.training.robot.replay.replay import run_replay

        return run_replay(self.episode, self.demo, self.contract, lockstep=self.lockstep)
