"""An episode that is about to be run under a probe, and the runs that come before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ttm.policy.errors import UserError
from ttm.sim.environment import Env, reset_options
from ttm.sim.evaluation.condition import Condition
from ttm.sim.evaluation.delay import delayed
from ttm.sim.evaluation.rollout import Actor, step

Memory = Mapping[str, np.ndarray]
"""The tensors of a core's state, without the batch axis."""


class RememberingActor(Actor, Protocol):
    """An actor whose memory can be read and replaced."""

    def memory(self) -> dict[str, np.ndarray]:
        """Return a copy of the memory."""

    def set_memory(self, memory: Memory) -> None:
        """Replace the memory."""


@dataclass(frozen=True)
class Trial:
    """An episode that is about to be run."""

    env: Env
    actor: RememberingActor
    task: str
    seed: int
    condition: Condition
    max_ticks: int | None = None
    """The number of ticks after which it is cut off, as it is without the probe."""
    late: Actor | None = None
    """What drives the episode if that is not `actor` itself, as its commands come late."""


def begin(
    trial: Trial, seed: int, gap: int | None, right_choice: str | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reset the environment to an initial state of the trial's task, under the trial's cue.

    gap, right_choice: see `ttm.sim.environment.reset_options`. Returns the observation and the info.
    """
    options = reset_options(trial.task, gap, trial.condition.cue, right_choice)
    observation, info = trial.env.reset(seed=seed, options=options)
    return observation, info


def run_to_go(
    trial: Trial, seed: int, gap: int | None, right_choice: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Drive the episode that `begin` begins until the robot may act.

    Commands are as late as in the episode of the trial. Returns the tick at which it may, and the
    environment's info there. The actor has not yet seen that tick's observation. Raises `UserError`
    if the episode ends before, or is cut off.
    """
    env, over = trial.env, False
    actor = delayed(trial.actor, env, trial.condition.delay_s)
    most = math.inf if trial.max_ticks is None else trial.max_ticks
    observation, info = begin(trial, seed, gap, right_choice)
    actor.reset(info["instruction"])
    tick = 0
    while not info["go"] and not over and tick < most:
        observation, info, over = step(env, actor, actor.act(observation))
        tick += 1
    if not info["go"]:
        longer = "the environment more time" if over else "more --max-ticks"
        raise UserError(
            f"task '{trial.task}', initial state {seed}: the episode ended after {tick} ticks, before "
            f"the robot could act; give a shorter --gap, or {longer}"
        )
    return tick, info
