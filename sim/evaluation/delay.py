"""Commands that come into force some time after the observation that they answer, as on a robot."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from ttm.sim.environment import Env, resting_action_of, spec_of
from ttm.sim.evaluation.rollout import Actor


def delayed(actor: Actor, env: Env, delay_s: float) -> Actor:
    """Return an actor in `env` whose commands come into force `delay_s` later: without delay, `actor`."""
    return DelayedActor(actor, env, delay_s) if delay_s else actor


def forget_commands(actor: Actor) -> None:
    """Let the robot rest in place of the commands that `actor` has decided and that are not in force yet.

    A memory that is exchanged while the robot is held says nothing if what was decided with the old one
    still comes into force.
    """
    if isinstance(actor, DelayedActor):
        actor.forget()


class DelayedActor:
    """Any actor whose commands come into force `delay_s` after the observation.

    A tick is carried out as the mean of the two commands that are in force in it, each weighted by its
    time; a binary part as the one with the larger share. Until the first command is in force, the
    robot stays where it is (`resting_action_of`), and binary parts are those of the first command.
    A probe that changes the memory lets it go on resting: see `forget_commands`.
    """

    def __init__(self, actor: Actor, env: Env, delay_s: float):
        """env: what the actor acts in. delay_s: in seconds; it may be longer than a tick."""
        spec = spec_of(env)
        ticks = delay_s / spec.control_dt_s
        self._actor, self._env, self._binary = actor, env, spec.binary_mask
        self._whole = int(ticks)
        self._share = ticks - self._whole
        """The portion of a tick in which the older of two commands is still in force."""
        self._commands: deque[np.ndarray] = deque(maxlen=self._whole + 2)
        self._done = np.zeros(spec.action_size, np.float32)

    def reset(self, instruction: str) -> None:
        """See `Actor.reset`."""
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
        """See `Actor.executed`."""
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
