"""Plays an episode on the topics of its robot, waiting for a policy or not."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm_policy.replay.replay_node import ReplayNode
from ttm_policy.simulator.actors import CLOCK_PERIOD_S, Interrupted, LockstepActor
from ttm_policy.stop_signals import StopSignals

LEAD_S = 1.0
"""So long before the first tick the clock begins, so that listeners can find the topics."""


@dataclass(frozen=True)
class Comparison:
    """What a policy commanded, (T, A), beside the actions that were recorded, (T, A)."""

    commanded: npt.NDArray[np.float32]
    recorded: npt.NDArray[np.float32]

    def __str__(self) -> str:
        """Return how many actions came again bit by bit, and else where they first differ."""
        same = (self.commanded == self.recorded).all(axis=1)
        text = f"{same.sum()} of {len(same)} actions are the recorded ones bit by bit"
        if same.all():
            return text
        first = int(np.argmin(same))
        most = float(np.abs(self.commanded - self.recorded).max())
        return f"{text}; tick {first} is the first that differs, and the largest difference is {most:.3g}"


def play_in_lockstep(node: ReplayNode, signals: StopSignals) -> Comparison:
    """Empty the policy's memory, and play each tick when the policy has answered the one before.

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
    return Comparison(np.array(commanded, np.float32), episode.actions)


def play_freely(node: ReplayNode, signals: StopSignals) -> None:
    """Play all ticks at their own pace, whoever listens. Raises `Interrupted`."""
    episode, stamps = node.episode, node.stamps_ns
    clock = _Clock(node, signals, int(stamps[0]) - round(LEAD_S * 1e9))
    node.publish_instruction(episode.instruction)
    did = np.zeros(episode.spec.action_size, np.float32)
    for tick, executed in enumerate(episode.executed_actions):
        observation = episode.observation(tick)
        clock.run_until(int(stamps[tick]))
        node.publish_observation(observation, did, int(stamps[tick]))
        did = executed
    clock.run_until(int(stamps[-1]) + round(episode.spec.control_dt_s * 1e9))


class _Clock:
    """Lets the time of an episode run on, as fast as wall time, and publishes it."""

    def __init__(self, node: ReplayNode, signals: StopSignals, begin_ns: int) -> None:
        self._node, self._signals, self._begin_ns = node, signals, begin_ns
        self._begin_s = time.monotonic()

    def run_until(self, time_ns: int) -> None:
        """Return when it is that time. Raises `Interrupted` after a signal."""
        while True:
            if self._signals.requested:
                raise Interrupted
            now_ns = self._begin_ns + round((time.monotonic() - self._begin_s) * 1e9)
            if now_ns >= time_ns:
                return
            self._node.publish_clock(now_ns)
            time.sleep(min(CLOCK_PERIOD_S, (time_ns - now_ns) * 1e-9))
