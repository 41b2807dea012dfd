"""Disturbing the executed action, so that demonstrations show recovery (DART, Laskey et al. 2017).

The robot executes the disturbed action. The recorded action stays the expert's own.
"""

from __future__ import annotations

import numpy as np

from ttm.policy.spec import ActionPart, PolicySpec

NOISE = {"arm_translation": 0.012, "arm_rotation": 0.03, "base": 0.08}
"""Standard deviation of a tick's noise at level 1, in the unit of the action part of that name."""
PUSH = {"arm_translation": 0.04, "arm_rotation": 0.08, "base": 0.3}
"""Largest value of a push, which lasts some ticks, at level 1."""
NOISE_PORTION, PUSH_PORTION = 0.2, 0.6
"""The same for other parts, as portions of their largest command."""
PUSH_PROBABILITY = 0.05
SLIP_PROBABILITY = 0.015
"""Probability in each tick, at level 1, that the gripper opens or closes by itself for some ticks."""
GRIPPER = "gripper"


class Disturbance:
    """Noise at every tick, and sometimes a push or a slip of the gripper.

    Only continuous action parts with finite limits get noise and pushes. Each episode's level is
    drawn once: a third of the episodes is left alone, so that the clean motion is seen too.

    Parameters
    ----------
    rng : numpy.random.Generator
        All that is random is drawn from it.
    level : float
        Scales the disturbance.
    spec : PolicySpec
        Says what the parts of an action are.
    """

    def __init__(self, rng: np.random.Generator, level: float, spec: PolicySpec):
        self._rng = rng
        self._level = 0.0 if rng.random() < 1 / 3 else level * rng.uniform(0.2, 1.0)
        self._slices = spec.action_slices
        disturbed = [
            part
            for part in spec.actions
            if part.kind == "continuous" and np.isfinite(_largest(part))
        ]
        self._noise = {p.name: NOISE.get(p.name, NOISE_PORTION * _largest(p)) for p in disturbed}
        self._largest_push = {
            p.name: PUSH.get(p.name, PUSH_PORTION * _largest(p)) for p in disturbed
        }
        self._push = np.zeros(spec.action_size)
        self._push_ticks = 0
        self._slip_ticks = 0
        self._slip_to = 1.0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return the action (A,) to execute instead of `action` (A,)."""
        if self._level == 0.0:
            return action
        executed = action.astype(np.float64)
        self._draw()
        for name, deviation in self._noise.items():
            where = self._slices[name]
            size = where.stop - where.start
            executed[where] += self._level * self._rng.normal(0.0, deviation, size)
        if self._push_ticks > 0:
            executed += self._push
            self._push_ticks -= 1
        if self._slip_ticks > 0:
            executed[self._slices[GRIPPER]] = self._slip_to
            self._slip_ticks -= 1
        return executed

    def _draw(self) -> None:
        """Decide whether a push or a slip begins at this tick."""
        if self._push_ticks == 0 and self._rng.random() < PUSH_PROBABILITY:
            self._push_ticks = int(self._rng.integers(2, 7))
            self._push[:] = 0.0
            for name, largest in self._largest_push.items():
                where = self._slices[name]
                size = where.stop - where.start
                self._push[where] = self._level * self._rng.uniform(-largest, largest, size)
        if GRIPPER not in self._slices:
            return
        if self._slip_ticks == 0 and self._rng.random() < SLIP_PROBABILITY * self._level:
            self._slip_ticks = int(self._rng.integers(1, 4))
            self._slip_to = float(self._rng.integers(2))


def _largest(part: ActionPart) -> float:
    return max(abs(part.low), abs(part.high))
