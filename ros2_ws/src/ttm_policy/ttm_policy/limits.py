"""Limits on what a policy may command: always on, whatever the network says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract import LIMITS, RobotContract

Vector = npt.NDArray[np.float32]


class SafetyLimits:
    """Cuts an action to the spec's own bounds, then to the robot's speed and displacement limits.

    `limits` has a value for each name of `contract.LIMITS`: m/s, rad/s, m a tick, rad a tick.
    """

    def __init__(self, contract: RobotContract, spec: PolicySpec, limits: Mapping[str, float]):
        for name in LIMITS:
            if not limits[name] > 0:
                raise UserError(f"{name} is {limits[name]}; a limit must be above 0")
        self._low = np.concatenate(
            [np.full(part.size, part.low, dtype=np.float32) for part in spec.actions]
        )
        self._high = np.concatenate(
            [np.full(part.size, part.high, dtype=np.float32) for part in spec.actions]
        )
        self._parts = [
            (
                spec.action_slices[sink.name],
                np.array([limits[name] for name in sink.limits], dtype=np.float32),
            )
            for sink in contract.actions
            if sink.limits
        ]

    def apply(self, values: Vector) -> Vector:
        """values: (A,) -> (A,); one within the limits keeps its bits. Raises `ArithmeticError` for NaN or infinity."""
        if not np.isfinite(values).all():
            raise ArithmeticError(
                f"the policy's action {values} is not finite; check the checkpoint's training"
            )
        limited = np.clip(values, self._low, self._high)
        for where, most in self._parts:
            limited[where] = (
                _shorten(limited[where], most)
                if most.size == 1
                else np.clip(limited[where], -most, most)
            )
        return limited


def _shorten(part: Vector, most: Vector) -> Vector:
    """Keeps the direction: half of a displacement is safe, another direction may not be."""
    length = np.float32(np.linalg.norm(part))
    return part if length <= most[0] else part * (most[0] / length)
