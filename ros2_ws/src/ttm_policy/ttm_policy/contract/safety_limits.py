"""The limits on what a policy may command. They always apply."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ttm.policy.checks import require_above_0
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.parameters import LIMITS

Vector = npt.NDArray[np.float32]


class SafetyLimits:
    """Reduces an action to the bounds of the spec, then to the limits of the robot."""

    def __init__(self, contract: RobotContract, spec: PolicySpec, limits: Mapping[str, float]):
        """limits: a value above 0 for each name in `ttm_policy.parameters.LIMITS`."""
        require_above_0({name: limits[name] for name in LIMITS})
        self._low, self._high = spec.action_limits
        self._parts = [
            (
                spec.action_slices[sink.name],
                np.array([limits[name] for name in sink.limits], dtype=np.float32),
            )
            for sink in contract.actions
            if sink.limits
        ]
        self._motion = [spec.action_slices[name] for name in contract.motion_parts]

    def apply(self, values: Vector) -> Vector:
        """Return the limited action. An action within the limits keeps its bits.

        values: (A,) -> (A,). Raises `ArithmeticError` for NaN and infinity.
        """
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

    def stopped(self, values: Vector) -> Vector:
        """Return what remains of a command (A,) when the robot stands still: (A,).

        Nothing moves, and the gripper keeps what it holds. This is what `CommandCodec.stop` commands.
        """
        still = values.copy()
        for where in self._motion:
            still[where] = 0.0
        return still


def _shorten(part: Vector, most: Vector) -> Vector:
    """Return a vector of at most the given length. The direction stays the same for safety."""
    length = np.float32(np.linalg.norm(part))
    return part if length <= most[0] else part * (most[0] / length)
