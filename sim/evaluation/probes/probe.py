"""Probes: what is done to the memory of a policy from outside, to find out whether it is used.

If a policy chooses as well with its memory emptied, it does not need it. If it then chooses what the
episode asked for whose memory it was given, the memory carries the choice. A probe changes nothing
but the memory: instruction, previous action and tick count stay as they are. The previous action is
what the robot did (`PolicyEnv`), so that it tells nothing of the cue as long as the robot is held.
What was decided with the old memory and is not carried out yet goes with it: a plan, and commands that
are late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ttm.sim.evaluation.condition import ProbeName
from ttm.sim.evaluation.delay import forget_commands
from ttm.sim.evaluation.probes.donor import Donor, find_donor
from ttm.sim.evaluation.probes.trial import Memory, Trial, run_to_go


class Probe:
    """Leaves the memory alone. Each other probe overrides `before_tick`."""

    donor: Donor | None = None

    def __init__(self, trial: Trial):
        """Prepare the episode. This may run other episodes with the environment and the actor."""
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
            self._exchange(self._initial)
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

    `Condition.donor` says which. The same policy drives it through a gap of the same length.
    """

    def __init__(self, trial: Trial):
        super().__init__(trial)
        self.donor = find_donor(trial)
        self._theirs: Memory | None = self.donor.memory(trial)

    def before_tick(self, tick: int, go: bool) -> None:
        """See `Probe.before_tick`."""
        if go and self._theirs is not None:
            self._exchange(self._theirs)
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
