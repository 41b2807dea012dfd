"""Plays a recorded episode as ROS messages. `ttm data play --topics` runs this module as a program."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import rclpy
from rclpy.signals import SignalHandlerOptions

from ttm.datasets.reader import EpisodeReader
from ttm.datasets.tools.play import capture_times_s
from ttm.policy.errors import UserError
from ttm_policy.contract import load_contract
from ttm_policy.parameters import SimParameters
from ttm_policy.programs import StopSignals, run_for_ttm
from ttm_policy.simulator.episodes import CLOCK_PERIOD_S, Interrupted, LockstepActor, PolicyIsSilent
from ttm_policy.simulator.robot import Observation, RobotTopics, Vector

FIRST_S = 2.0
"""Episodes whose times begin earlier are shifted to this one: ROS takes 0 for a clock that is not there."""
LATEST_S = 2**31
"""The seconds of a stamp are an int32."""
LEAD_S = 1.0
"""So long before the first tick the clock begins, so that listeners can find the topics."""


@dataclass(frozen=True)
class ReplayOptions:
    """What `ttm data play --topics` asks for."""

    episode: str
    demo: str | None = None
    contract: str = ""
    lockstep: bool = False


def replay_episode(options: ReplayOptions, signals: StopSignals) -> None:
    """Play an episode, and print what came of it. ROS is initialised.

    Raises `UserError` for a contract that does not fit, `PolicyIsSilent`, and `Interrupted` after a signal.
    """
    episode = EpisodeReader.open(options.episode, options.demo)
    node = ReplayNode(episode, SimParameters(contract=options.contract, lockstep=options.lockstep))
    try:
        name = Path(options.episode).name
        node.say(f"{name}: {episode.num_samples} ticks: {episode.instruction}")
        if options.lockstep:
            node.say(play_in_lockstep(node, signals))
        else:
            play_freely(node, signals)
    finally:
        node.destroy_node()


def stamps_ns(episode: EpisodeReader) -> npt.NDArray[np.int64]:
    """Return the stamp of each tick, (T,) int64, in ns: when its observation was captured.

    Episodes without times have those of their rate. Raises `UserError` unless each time is later than
    the one before.
    """
    times_s = capture_times_s(episode)
    if times_s[0] < FIRST_S:
        times_s = times_s - times_s[0] + FIRST_S
    seconds, fractions = np.divmod(times_s, 1.0)
    stamps = seconds.astype(np.int64) * 1_000_000_000 + np.round(fractions * 1e9).astype(np.int64)
    backward = np.flatnonzero(np.diff(stamps) <= 0)  # the ticks whose next one is not later
    problems = [f"tick {n + 1} is not later than the one before" for n in backward]
    if times_s[-1] >= LATEST_S:
        problems.append("its times end after the year 2038")
    if problems:
        raise UserError(f"{episode.path}: {problems[0]}; mend its timestamps; a film needs none")
    return stamps


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
        return int(self.stamps_ns[self._tick])

    def publish_observation(self, observation: Observation, executed: Vector, time_ns: int) -> None:
        super().publish_observation(observation, executed, time_ns)
        self._tick += 1


def compare(commanded: Vector, recorded: Vector) -> str:
    """Return how many actions, (T, A), came again bit by bit, and else where they first differ."""
    same = (commanded == recorded).all(axis=1)
    text = f"{same.sum()} of {len(same)} actions are the recorded ones bit by bit"
    if same.all():
        return text
    first, most = int(np.argmin(same)), float(np.abs(commanded - recorded).max())
    return f"{text}; tick {first} is the first that differs; the largest difference is {most:.3g}"


def play_in_lockstep(node: ReplayNode, signals: StopSignals) -> str:
    """Play each tick when the policy has answered the one before; return what `compare` says.

    What the policy commands changes nothing: the robot reports what was executed when it was recorded.
    Raises `PolicyIsSilent`, `Interrupted`, and `UserError` for an episode without an instruction.
    """
    episode = node.episode
    if not episode.instruction:
        raise UserError(f"{episode.path} has no instruction; give it one by ttm data label")
    actor, executed, commanded = LockstepActor(node, signals), episode.executed_actions, []
    actor.reset(episode.instruction)
    for tick in range(episode.num_samples):
        commanded.append(actor.act(episode.observation(tick)))
        actor.executed(executed[tick])
    return compare(np.array(commanded, np.float32), episode.actions)


def play_freely(node: ReplayNode, signals: StopSignals) -> None:
    """Play all ticks at their own pace, whoever listens. Raises `Interrupted`."""
    episode, stamps = node.episode, node.stamps_ns
    begin_ns, begin_s = int(stamps[0]) - round(LEAD_S * 1e9), time.monotonic()

    def run_until(time_ns: int) -> None:
        """Let the clock run on, as fast as wall time, until it is that time."""
        while True:
            if signals.requested:
                raise Interrupted
            now_ns = begin_ns + round((time.monotonic() - begin_s) * 1e9)
            if now_ns >= time_ns:
                return
            node.publish_clock(now_ns)
            time.sleep(min(CLOCK_PERIOD_S, (time_ns - now_ns) * 1e-9))

    node.publish_instruction(episode.instruction)
    did = np.zeros(episode.spec.action_size, np.float32)
    for tick, executed in enumerate(episode.executed_actions):
        observation = episode.observation(tick)
        run_until(int(stamps[tick]))
        node.publish_observation(observation, did, int(stamps[tick]))
        did = executed
    run_until(int(stamps[-1]) + round(episode.spec.control_dt_s * 1e9))


def _run(options: ReplayOptions) -> int:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        replay_episode(options, StopSignals())
        return 0
    except PolicyIsSilent as error:
        raise UserError(str(error)) from error
    except Interrupted:  # `ttm`, which gets Ctrl-C too, says so
        return 130
    finally:
        rclpy.try_shutdown()


main = partial(run_for_ttm, ReplayOptions, _run)
"""Plays what the JSON of `ReplayOptions` says; returns the exit code."""
