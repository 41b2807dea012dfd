"""Plays a recorded episode as ROS messages. `ttm data play --topics` runs this module as a program."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import rclpy
from rclpy.signals import SignalHandlerOptions

from ttm.datasets.episode_reader import EpisodeReader
from ttm.policy.errors import UserError
from ttm_policy.parameters import SimParameters
from ttm_policy.replay.play import play_freely, play_in_lockstep
from ttm_policy.replay.replay_node import ReplayNode
from ttm_policy.simulator.actors import Interrupted, PolicyIsSilent
from ttm_policy.stop_signals import StopSignals


@dataclass(frozen=True)
class ReplayOptions:
    """What `ttm data play --topics` asks for."""

    episode: str
    demo: str | None = None
    contract: str = ""
    lockstep: bool = False


def replay_episode(options: ReplayOptions, signals: StopSignals) -> None:
    """Play an episode, and print what came of it. ROS is initialised.

    Raises `UserError` if contract and episode do not fit together, `PolicyIsSilent` if no policy answers
    in lockstep, and `Interrupted` after a signal.
    """
    episode = EpisodeReader.open(options.episode, options.demo)
    parameters = SimParameters(contract=options.contract, lockstep=options.lockstep)
    node = ReplayNode(episode, parameters)
    try:
        node.say(
            f"{Path(options.episode).name}: {episode.num_samples} ticks: {episode.instruction}"
        )
        if options.lockstep:
            node.say(str(play_in_lockstep(node, signals)))
        else:
            play_freely(node, signals)
    finally:
        node.destroy_node()


def main(arguments: str) -> int:
    """Play what the JSON object of `ReplayOptions` says; return the exit code."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        replay_episode(ReplayOptions(**json.loads(arguments)), StopSignals())
        return 0
    except (UserError, PolicyIsSilent) as error:
        print(f"ttm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupted:  # `ttm`, which gets Ctrl-C too, says so
        return 130
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
