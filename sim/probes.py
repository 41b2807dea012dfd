"""Probes: what is done to the memory of a policy from outside, to find out whether it is used.

If a policy chooses as well with its memory emptied, it does not need it. If it chooses what the episode
asked for whose memory it was given, the memory carries the choice. Instruction, previous action and
tick count stay as they are. What was decided with the old memory and is not carried out yet goes with
it: a plan, and commands that are late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ttm.policy.errors import UserError
from ttm.sim.condition import SAME_STATE, Condition, ProbeName
from ttm.sim.environment import HELD, Env, expert_of, reset_options, tasks_of
from ttm.sim.rollout import Actor, delayed, forget_commands, step

Memory = Mapping[str, np.ndarray]
"""The tensors of a core's state, without the batch axis."""
INTERRUPTIONS = 7
"""Episodes that the probe "interrupt" shows."""
MOST_DONORS = 200
"""Initial states that are looked through for one of another cue."""


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
    """Reset to an initial state of the trial's task, under its cue; see `reset_options`."""
    condition = trial.condition
    options = reset_options(trial.task, gap, condition.cue, right_choice, condition.levels)
    return trial.env.reset(seed=seed, options=options)


def run_to_go(
    trial: Trial, seed: int, gap: int | None, right_choice: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Drive the episode that `begin` begins until the robot may act, with commands as late as the trial's.

    Returns that tick, whose observation the actor has not seen yet, and the info there. Where the robot
    may move before, and its own way never leads to that tick, they are those of the episode's end. Raises
    `UserError` if the episode of a robot that is held ends before, or is cut off.
    """
    actor = delayed(trial.actor, trial.env, trial.condition.delay_s)
    most = math.inf if trial.max_ticks is None else trial.max_ticks
    observation, info = begin(trial, seed, gap, right_choice)
    actor.reset(info["instruction"])
    tick, over = 0, False
    while not info["go"] and not over and tick < most:
        observation, info, over = step(trial.env, actor, actor.act(observation))
        tick += 1
    if not info["go"] and info.get(HELD, True):
        raise UserError(
            f"task '{trial.task}', initial state {seed}: the episode ended after {tick} ticks, before "
            "the robot could act; give a shorter --gap, or more --max-ticks"
        )
    return tick, info


@dataclass(frozen=True)
class Donor:
    """An episode whose memory is taken.

    In the same initial state it differs from the trial's in its cue alone, so that when the robot may
    act, only the memory differs. In another one the memory has to serve in another scene, too.
    """

    seed: int
    choice: str
    """What its cue asked for."""
    gap: int
    """Ticks between its cue and the first tick at which the robot may act."""
    is_other_cue: bool
    """Whether its initial state would ask for something else by itself, so that the cue is to be set."""

    def memory(self, trial: Trial) -> Memory:
        """Drive the episode with the actor until the robot may act, and return the memory there."""
        run_to_go(trial, self.seed, self.gap, self.choice if self.is_other_cue else None)
        return trial.actor.memory()


def find_donor(trial: Trial) -> Donor:
    """Return the donor that the trial's condition asks for, with the gap of the episode.

    It has another right choice, which must be one of this state's. Raises `UserError` if there is none.
    """
    _, info = begin(trial, trial.seed, trial.condition.gap)
    own, gap, choices = info["right_choice"], int(info["gap"]), info.get("choices")
    if trial.condition.donor == SAME_STATE:
        others = [choice for choice in choices or () if choice != own]
        if others:
            theirs = others[trial.seed % len(others)]
            _, shown = begin(trial, trial.seed, gap, theirs)
            if shown["right_choice"] == theirs:
                return Donor(trial.seed, theirs, gap, is_other_cue=True)
        raise UserError(
            f"task '{trial.task}': the environment cannot show another cue in the same initial state (see "
            "`choices` and `right_choice` of ttm.sim.environment.PolicyEnv); take --donor other-state"
        )
    for seed in range(trial.seed + 1, trial.seed + 1 + MOST_DONORS):
        _, found = begin(trial, seed, gap)
        theirs = found["right_choice"]
        if theirs != own and (choices is None or theirs in choices):
            return Donor(seed, theirs, gap, is_other_cue=False)
    raise UserError(
        f"task '{trial.task}': the {MOST_DONORS} initial states after {trial.seed} all ask for '{own}', or "
        "for what is not there, so that there is no memory of another cue; leave --probe swap out"
    )


class Probe:
    """Leaves the memory alone. Each other probe overrides `before_tick`."""

    donor: Donor | None = None

    def __init__(self, trial: Trial):
        """Prepare the episode, perhaps by running others with the environment and the actor."""
        self.actor, self._late = trial.actor, trial.late or trial.actor

    def before_tick(self, tick: int, go: bool) -> None:
        """Change the memory of the actor, which is about to act.

        tick: counted from 0 at the actor's reset. go: whether the robot may act now.
        """

    def _exchange(self, memory: Memory) -> None:
        """Let the robot act with another memory alone."""
        self.actor.set_memory(memory)
        forget_commands(self._late)


class Zero(Probe):
    """Resets the memory before every tick."""

    def before_tick(self, tick: int, go: bool) -> None:
        if tick == 0:
            self._initial = self.actor.memory()
        self.actor.set_memory(self._initial)


class Erase(Probe):
    """Resets the memory once, at the first tick at which the robot may act."""

    def before_tick(self, tick: int, go: bool) -> None:
        if tick == 0:
            self._initial: Memory | None = self.actor.memory()
        if go and self._initial is not None:
            self._exchange(self._initial)
            self._initial = None


class Freeze(Probe):
    """Undoes what is written to the memory in the gap, whose begin is known from a first run."""

    def __init__(self, trial: Trial):
        super().__init__(trial)
        self._last, info = run_to_go(trial, trial.seed, trial.condition.gap)
        self._first = self._last - int(info["gap"])
        self._kept: Memory = {}

    def before_tick(self, tick: int, go: bool) -> None:
        if tick == max(self._first, 0):
            self._kept = self.actor.memory()
        elif self._first < tick <= self._last:
            self.actor.set_memory(self._kept)


class Swap(Probe):
    """Gives the robot, when it may act, the memory of a donor, driven by the same policy."""

    def __init__(self, trial: Trial):
        super().__init__(trial)
        self._theirs: Memory | None = self._other_memory(trial)

    def _other_memory(self, trial: Trial) -> Memory:
        """Run what leads to the memory that the robot is to act with."""
        self.donor = find_donor(trial)
        return self.donor.memory(trial)

    def before_tick(self, tick: int, go: bool) -> None:
        if go and self._theirs is not None:
            self._exchange(self._theirs)
            self._theirs = None


class Interrupt(Swap):
    """Shows the policy `INTERRUPTIONS` episodes of skills before the robot may act, with its memory kept.

    The environment's expert drives them, or the policy if there is none (RoboMME's interference test).
    """

    def _other_memory(self, trial: Trial) -> Memory:
        run_to_go(trial, trial.seed, trial.condition.gap)
        env, actor = trial.env, trial.actor
        skills = [
            task
            for task in tasks_of(env)
            if "go" not in env.reset(seed=trial.seed, options=reset_options(task))[1]
        ]
        if not skills:
            raise UserError(
                "all tasks show a cue, so that none interrupts; leave --probe interrupt out"
            )
        for seed in range(trial.seed * INTERRUPTIONS, (trial.seed + 1) * INTERRUPTIONS):
            task = skills[seed % len(skills)]
            observation, info = env.reset(seed=seed, options=reset_options(task))
            expert = expert_of(env) if env.has_wrapper_attr("expert") else None
            kept, over = actor.memory(), False
            actor.reset(info["instruction"])
            actor.set_memory(kept)
            while not over:
                action = actor.act(observation)
                observation, _, over = step(env, actor, expert.action() if expert else action)
        return actor.memory()


class Noise(Probe):
    """Adds Gaussian noise to every token of the memory before every tick.

    A token is one row of the last axis of a floating-point tensor with more axes than one. The root mean
    square of the norm of its noise is `noise` times its own norm.
    """

    def __init__(self, trial: Trial):
        super().__init__(trial)
        assert trial.condition.noise is not None
        self._share = trial.condition.noise
        self._rng = np.random.default_rng((trial.seed, 2))

    def before_tick(self, tick: int, go: bool) -> None:
        memory = self.actor.memory()
        self.actor.set_memory({name: self._disturbed(value) for name, value in memory.items()})

    def _disturbed(self, value: np.ndarray) -> np.ndarray:
        if value.ndim < 2 or not np.issubdtype(value.dtype, np.floating):
            return value
        scale = self._share * np.linalg.norm(value, axis=-1, keepdims=True)
        noise = self._rng.standard_normal(value.shape) / np.sqrt(value.shape[-1])
        return (value + scale * noise).astype(value.dtype)


PROBES: Mapping[ProbeName, Callable[[Trial], Probe]] = {
    "live": Probe,
    "zero": Zero,
    "erase": Erase,
    "freeze": Freeze,
    "swap": Swap,
    "noise": Noise,
    "interrupt": Interrupt,
}
