"""Probes: what is done to the memory of a policy from outside, to find out whether it is used.

If a policy chooses as well with its memory emptied, it does not need it. If it then chooses what the
episode asked for whose memory it was given, the memory carries the choice. A probe changes nothing
but the memory: instruction, previous action and tick count stay as they are. The previous action is
what the robot did (`PolicyEnv`), so that it tells nothing of the cue as long as the robot is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ttm.policy.errors import UserError
from ttm.sim.environment import CueName, Env, reset_options
from ttm.sim.evaluation.condition import Condition, ProbeName
from ttm.sim.evaluation.delay import delayed
from ttm.sim.evaluation.rollout import Actor, step

Memory = Mapping[str, np.ndarray]
"""The tensors of a core's state, without the batch axis."""

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


@dataclass(frozen=True)
class Donor:
    """The episode whose memory was taken."""

    seed: int
    choice: str
    """What its cue asked for."""


class Probe:
    """Leaves the memory alone. Each other probe overrides `before_tick`."""

    donor: Donor | None = None

    def __init__(self, trial: Trial):
        """Prepare the episode. This may run other episodes with the environment and the actor."""
        self.actor = trial.actor

    def before_tick(self, tick: int, go: bool) -> None:
        """Change the memory of the actor, which is about to act.

        tick: counted from 0 at the actor's reset. go: whether the robot may act now.
        """


class Zero(Probe):
    """Resets the memory before every tick."""

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        if tick == 0:
            self._initial = self.actor.memory()
        self.actor.set_memory(self._initial)


class Erase(Probe):
    """Resets the memory once, at the first tick at which the robot may act."""

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        if tick == 0:
            self._initial: Memory | None = self.actor.memory()
        if go and self._initial is not None:
            self.actor.set_memory(self._initial)
            self._initial = None


class Freeze(Probe):
    """Undoes what is written to the memory in the gap.

    When the gap begins is known from a first run of the same episode, which the probe leaves alone.
    """

    def __init__(self, trial: Trial):
        super().__init__(trial)
        condition = trial.condition
        go_tick, info = run_to_go(trial, trial.seed, condition.gap)
        self._last = go_tick
        self._first = go_tick - int(info["gap"])
        self._kept: Memory = {}

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        if tick == max(self._first, 0):
            self._kept = self.actor.memory()
        elif self._first < tick <= self._last:
            self.actor.set_memory(self._kept)


class Swap(Probe):
    """Gives the robot, when it may act, the memory of an episode that was shown another cue.

    The donor is the next numbered initial state whose right choice is another, which can be chosen
    in this state, too. The same policy drives it through a gap of the same length.
    """

    def __init__(self, trial: Trial):
        super().__init__(trial)
        self.donor, gap = find_donor(trial)
        run_to_go(trial, self.donor.seed, gap)
        self._theirs: Memory | None = self.actor.memory()

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        if go and self._theirs is not None:
            self.actor.set_memory(self._theirs)
            self._theirs = None


class Noise(Probe):
    """Adds Gaussian noise to every token of the memory before every tick.

    A token is one row of the last axis of a floating-point tensor that has more axes than one. The
    expected square of the norm of its noise is the square of `noise` times its own norm. The number
    of the initial state seeds the noise.
    """

    def __init__(self, trial: Trial):
        super().__init__(trial)
        assert trial.condition.noise is not None
        self._share = trial.condition.noise
        self._rng = np.random.default_rng((trial.seed, 2))

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        memory = self.actor.memory()
        self.actor.set_memory({name: self._disturbed(value) for name, value in memory.items()})

    def _disturbed(self, value: np.ndarray) -> np.ndarray:
        if value.ndim < 2 or not np.issubdtype(value.dtype, np.floating):
            return value
        scale = self._share * np.linalg.norm(value, axis=-1, keepdims=True)
        noise = self._rng.standard_normal(value.shape) / np.sqrt(value.shape[-1])
        disturbed: np.ndarray = (value + scale * noise).astype(value.dtype)
        return disturbed


PROBES: Mapping[ProbeName, Callable[[Trial], Probe]] = MappingProxyType(
    {
        "live": Probe,
        "zero": Zero,
        "erase": Erase,
        "freeze": Freeze,
        "swap": Swap,
        "noise": Noise,
    }
)


def run_to_go(trial: Trial, seed: int, gap: int | None) -> tuple[int, dict[str, Any]]:
    """Drive the episode of the initial state `seed` until the robot may act.

    Commands are as late as in the episode of the trial. Returns the tick at which it may, and the
    environment's info there. The actor has not yet seen that tick's observation. Raises `UserError`
    if the episode ends before, or is cut off.
    """
    env, over = trial.env, False
    actor = delayed(trial.actor, env, trial.condition.delay_s)
    most = math.inf if trial.max_ticks is None else trial.max_ticks
    observation, info = _reset(trial, seed, gap)
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


def find_donor(trial: Trial) -> tuple[Donor, int]:
    """Return the next initial state of another right choice, and the gap for its episode.

    That choice is one of this state's, if the environment tells them. Raises `UserError` if none of
    the next `MOST_DONORS` states will do.
    """
    _, info = _reset(trial, trial.seed, trial.condition.gap)
    own, gap, choices = info["right_choice"], int(info["gap"]), info.get("choices")
    for seed in range(trial.seed + 1, trial.seed + 1 + MOST_DONORS):
        _, info = _reset(trial, seed, gap)
        theirs = info["right_choice"]
        if theirs != own and (choices is None or theirs in choices):
            return Donor(seed, theirs), gap
    raise UserError(
        f"task '{trial.task}': the {MOST_DONORS} initial states after {trial.seed} all ask for '{own}', or "
        "for what is not there, so that there is no memory of another cue; leave --probe swap out"
    )


def _reset(
    trial: Trial, seed: int, gap: int | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    cue: CueName = trial.condition.cue
    observation, info = trial.env.reset(seed=seed, options=reset_options(trial.task, gap, cue))
    return observation, info
