"""One episode in closed loop: a numbered initial state, something that acts, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ttm.policy.spec import PolicySpec
from ttm.sim.environment import EXECUTED, CueName, Env, reset_options

OnTick = Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], None]
"""Is called with every observation, the first one included, and with the environment's `info`. There
`tick` and `time_s` are added where the environment does not give them."""


class Actor(Protocol):
    """What drives an episode: a policy with its memory, or a scripted expert."""

    def reset(self, instruction: str) -> None:
        """Begin an episode and forget the last one."""

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return this tick's command, (A,) float32 in the units of the spec."""

    def executed(self, action: np.ndarray) -> None:
        """Take note of what the robot did, (A,), in place of the command. Not all environments say it."""


@dataclass(frozen=True)
class Choice:
    """What the robot chose in a memory task; see `ttm.sim.environment.PolicyEnv`."""

    made: str | None
    """What it chose; None if it has chosen nothing."""
    right_choice: str
    """What the cue asked for."""
    gap: int
    """The number of ticks between the end of the cue and the first tick at which it could act."""
    go_tick: int | None
    """The first tick, counted from 0, at which it could act; None if the episode ended before."""
    donor_choice: str | None = None
    """What the cue of the donor asked for, if the memory was exchanged with a donor's."""
    donor_seed: int | None = None
    """The initial state of the donor."""

    @property
    def is_right(self) -> bool:
        return self.made == self.right_choice

    @property
    def follows_donor(self) -> bool:
        return self.donor_choice is not None and self.made == self.donor_choice


@dataclass(frozen=True)
class Outcome:
    """How the episode from one numbered initial state ended."""

    task: str
    seed: int
    instruction: str
    success: bool
    """Whether the simulator's state was one that was asked for. The policy's own word does not count."""
    ticks: int
    terminate_tick: int | None
    """The first tick, counted from 1, at which the policy said that it is done; None if it never did."""
    choice: Choice | None = None
    """What the robot chose; None for tasks that are no memory tasks."""


def run_episode(
    env: Env,
    actor: Actor,
    *,
    spec: PolicySpec,
    task: str,
    seed: int,
    max_ticks: int | None = None,
    on_tick: OnTick | None = None,
    gap: int | None = None,
    cue: CueName = "hidden",
) -> Outcome:
    """Drive `env` from initial state `seed` until success, its time limit, or `max_ticks`.

    The episode goes on after the policy has commanded `terminate`, which is only noted. `on_tick` is
    called before the actor acts on the observation. gap and cue: see `reset_options`.
    """
    observation, info = env.reset(seed=seed, options=reset_options(task, gap, cue))
    instruction = info["instruction"]
    actor.reset(instruction)
    ticks, terminate_tick, go_tick, over = 0, None, None, False

    def show() -> None:
        nonlocal go_tick
        if go_tick is None and info.get("go"):
            go_tick = ticks
        if on_tick is not None:
            on_tick(observation, {"tick": ticks, "time_s": ticks * spec.control_dt_s, **info})

    show()
    while not over and (max_ticks is None or ticks < max_ticks):
        action = actor.act(observation)
        observation, info, over = step(env, actor, action)
        ticks += 1
        if terminate_tick is None and spec.says_done(action):
            terminate_tick = ticks
        show()
    success, choice = bool(info["success"]), _choice(info, go_tick)
    return Outcome(task, seed, instruction, success, ticks, terminate_tick, choice)


def step(
    env: Env, actor: Actor, action: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any], bool]:
    """Execute `action`, and tell the actor what was executed, if the environment says it.

    Returns the observation, the info, and whether the episode is over.
    """
    observation, _, terminated, truncated, info = env.step(action)
    if EXECUTED in info:
        actor.executed(info[EXECUTED])
    return observation, info, terminated or truncated


def _choice(info: Mapping[str, Any], go_tick: int | None) -> Choice | None:
    """Return what was chosen, from the last info of an episode."""
    if "right_choice" not in info:
        return None
    return Choice(info["choice"], info["right_choice"], int(info["gap"]), go_tick)
