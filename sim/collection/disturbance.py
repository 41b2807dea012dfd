"""Pushes on the executed action, so that demonstrations show how to recover (DART, Laskey et al. 2017).

The robot executes the disturbed action; the recorded action stays the expert's own.
"""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.env import SPEC

NOISE = {"arm_translation": 0.012, "arm_rotation": 0.03, "base": 0.08}
"""Standard deviation of a tick's noise at level 1, in each part's unit."""
PUSH = {"arm_translation": 0.04, "arm_rotation": 0.08, "base": 0.3}
"""Largest value of a push that lasts some ticks at level 1."""
PUSH_PROBABILITY = 0.05
SLIP_PROBABILITY = 0.015
"""A tick's chance that the gripper is held open, or closed, against the expert's wish for some ticks."""


class Disturbance:
    """Noise on every tick, pushes and gripper slips now and then; an episode's level is drawn once.

    A third of the episodes is left alone, so that the clean motion is seen too. `level` scales the rest.
    """

    def __init__(self, rng: np.random.Generator, level: float):
        self._rng = rng
        self._level = 0.0 if rng.random() < 1 / 3 else level * rng.uniform(0.2, 1.0)
        self._push = np.zeros(SPEC.action_size)
        self._push_ticks = 0
        self._slip_ticks = 0
        self._slip_to = 1.0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """action: (A,) -> the action (A,) to execute instead."""
        if self._level == 0.0:
            return action
        executed = action.astype(np.float64)
        self._draw()
        for name, deviation in NOISE.items():
            where = SPEC.action_slices[name]
            size = where.stop - where.start
            executed[where] += self._level * self._rng.normal(0.0, deviation, size)
        if self._push_ticks > 0:
            executed += self._push
            self._push_ticks -= 1
        if self._slip_ticks > 0:
            executed[SPEC.action_slices["gripper"]] = self._slip_to
            self._slip_ticks -= 1
        return executed

    def _draw(self) -> None:
        if self._push_ticks == 0 and self._rng.random() < PUSH_PROBABILITY:
            self._push_ticks = int(self._rng.integers(2, 7))
            self._push[:] = 0.0
            for name, largest in PUSH.items():
                where = SPEC.action_slices[name]
                size = where.stop - where.start
                self._push[where] = self._level * self._rng.uniform(-largest, largest, size)
        if self._slip_ticks == 0 and self._rng.random() < SLIP_PROBABILITY * self._level:
            self._slip_ticks = int(self._rng.integers(1, 4))
            self._slip_to = float(self._rng.integers(2))
