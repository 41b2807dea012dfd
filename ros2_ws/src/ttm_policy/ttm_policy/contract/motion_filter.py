"""Bounds speed, acceleration and jerk of numbers that are commanded once in each tick.

The speed is bounded always. Acceleration and jerk are bounded from tick to tick, as differences of
the commanded speeds, by planning ahead: the acceleration is never so high that the bound of the jerk
would not let it end before the wanted speed is reached. Nothing therefore overshoots while the wanted
speed stays the same, and the bound of the speed holds without a jump.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
EPSILON = float(np.finfo(np.float64).eps)
"""What rounding may add to a length, in relation to it."""


@dataclass(frozen=True)
class MotionBounds:
    """The largest speed, acceleration and jerk of a vector's length, in units per second."""

    speed: float
    acceleration: float = math.inf
    jerk: float = math.inf


class MotionFilter:
    """Bounds the speeds (n,) of one part of the action. It remembers what was commanded before."""

    def __init__(self, groups: Sequence[slice], period_s: float):
        """groups: slices of the n numbers whose length is bounded together."""
        self._groups, self._period_s = tuple(groups), period_s
        size = max(group.stop for group in self._groups)
        self._speed, self._acceleration = np.zeros(size), np.zeros(size)

    def apply(self, wanted: Numbers, bounds: Sequence[MotionBounds]) -> Numbers:
        """Return the speeds (n,) that may be commanded. What is within the bounds keeps its bits.

        bounds: one for each group.
        """
        allowed = wanted.copy()
        for group, most in zip(self._groups, bounds, strict=True):
            target = shorten(wanted[group], most.speed)
            allowed[group] = self._step(group, target, most)
        return allowed

    @property
    def speed(self) -> Numbers:
        """The speeds (n,) that were commanded last."""
        return self._speed

    def commanded(self, speed: Numbers) -> None:
        """Note the speeds (n,) that were commanded in this tick."""
        self._acceleration = (speed - self._speed) / self._period_s
        self._speed = speed.copy()

    def halt(self) -> None:
        """Note that the robot stands still."""
        self._speed, self._acceleration = (
            np.zeros_like(self._speed),
            np.zeros_like(self._acceleration),
        )

    def _step(self, group: slice, target: Numbers, most: MotionBounds) -> Numbers:
        if math.isinf(most.acceleration) and math.isinf(most.jerk):
            return target
        before, gap = self._speed[group], target - self._speed[group]
        distance = float(np.linalg.norm(gap))
        wanted = gap / self._period_s
        most_acceleration = min(most.acceleration, self._that_ends_in_time(distance, most.jerk))
        acceleration = shorten(wanted, most_acceleration)
        if math.isfinite(most.jerk):
            now = self._acceleration[group]
            change = shorten(acceleration - now, most.jerk * self._period_s)
            acceleration = shorten(now + change, most.acceleration)
        if np.allclose(acceleration, wanted, rtol=1e-12, atol=1e-12):
            return target  # to the bit, which the sum below would not be
        return shorten(before + acceleration * self._period_s, most.speed)

    def _that_ends_in_time(self, distance: float, jerk: float) -> float:
        """Return the largest acceleration that can be brought to 0 within a change of the speed.

        A bounded jerk lets the acceleration a fall by q = jerk * period in each tick. The speed still
        changes by period * (a + (a - q) + (a - 2 q) + …), which must not exceed `distance`.
        """
        if math.isinf(jerk):
            return math.inf
        fall = jerk * self._period_s
        ticks = math.floor((math.sqrt(1 + 8 * distance / (self._period_s * fall)) - 1) / 2)
        return (distance / self._period_s + fall * ticks * (ticks + 1) / 2) / (ticks + 1)


def shorten(vector: Numbers, most: float) -> Numbers:
    """Return a vector of at most the given length. The direction stays the same."""
    length = float(np.linalg.norm(vector))
    if length <= most:
        return vector
    if len(vector) == 1:
        return np.copysign(most, vector)
    return vector * (most / length * (1 - 4 * EPSILON))
