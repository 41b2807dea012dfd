"""One episode in closed loop: a numbered initial state, something that acts, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ttm.policy.spec import PolicySpec
from ttm.sim.condition import CueName
from ttm.sim.environment import EXECUTED, Env, reset_options, resting_action_of, spec_of

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
    """None if it has chosen nothing."""
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
    """None for tasks that are no memory tasks."""


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
    vary: Mapping[str, int] | None = None,
) -> Outcome:
    """Drive `env` from initial state `seed` until success, its time limit, or `max_ticks`.

    The episode goes on after the policy has commanded `terminate`, which is only noted. `on_tick` is
    called before the actor acts on the observation. gap, cue and vary: see `reset_options`.
    """
    observation, info = env.reset(seed=seed, options=reset_options(task, gap, cue, vary=vary))
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
    choice = None
    if "right_choice" in info:
        choice = Choice(info["choice"], info["right_choice"], int(info["gap"]), go_tick)
    success = bool(info["success"])
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


def delayed(actor: Actor, env: Env, delay_s: float) -> Actor:
    """Return an actor in `env` whose commands come into force `delay_s` later: without delay, `actor`."""
    return DelayedActor(actor, env, delay_s) if delay_s else actor


def forget_commands(actor: Actor) -> None:
    """Let the robot rest in place of the commands that `actor` has decided and that are not in force yet."""
    if isinstance(actor, DelayedActor):
        actor.forget()


class DelayedActor:
    """Any actor whose commands come into force `delay_s` after the observation, as on a robot.

    A tick is carried out as the mean of the two commands that are in force in it, each weighted by its
    time; a binary part as the one with the larger share. Until the first command is in force, the
    robot stays where it is (`resting_action_of`), and binary parts are those of the first command.
    """

    def __init__(self, actor: Actor, env: Env, delay_s: float):
        spec = spec_of(env)
        ticks = delay_s / spec.control_dt_s
        self._actor, self._env, self._binary = actor, env, spec.binary_mask
        self._whole = int(ticks)
        self._share = ticks - self._whole
        """The portion of a tick in which the older of two commands is still in force."""
        self._commands: deque[np.ndarray] = deque(maxlen=self._whole + 2)
        self._done = np.zeros(spec.action_size, np.float32)

    def reset(self, instruction: str) -> None:
        self._commands.clear()
        self._actor.reset(instruction)

    def act(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Let the actor decide, and return what is in force in this tick, (A,) float32."""
        if not self._commands:
            self._rest = resting_action_of(self._env)
        self._commands.append(self._actor.act(observation))
        new, old = self._before(self._whole), self._before(self._whole + 1)
        mean = (1 - self._share) * new + self._share * old
        nearest = old if self._share > 0.5 else new
        in_force = np.where(self._binary, nearest, mean).astype(np.float32)
        self.executed(in_force)
        return in_force

    def executed(self, action: np.ndarray) -> None:
        self._done = action
        self._actor.executed(action)

    def forget(self) -> None:
        """Let the robot stay as it is in place of all commands that are not in force yet."""
        rest = np.where(self._binary, self._done, resting_action_of(self._env))
        for place in range(len(self._commands)):
            self._commands[place] = rest.astype(np.float32)

    def _before(self, ticks: int) -> np.ndarray:
        """Return the command of so many ticks ago."""
        if ticks < len(self._commands):
            return self._commands[-1 - ticks]
        return np.where(self._binary, self._commands[0], self._rest)
