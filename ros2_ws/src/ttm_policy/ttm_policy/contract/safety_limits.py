"""The limits on what a policy may command. They always apply, and bound the numbers that are sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from ttm.policy.checks import require_above_0
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec
from ttm_policy.contract.joint_limits import JointLimit
from ttm_policy.contract.part_limiter import Observation, PartLimiter
from ttm_policy.contract.robot_contract import JOINT_TYPES, RobotContract
from ttm_policy.parameter_sets.limit_parameters import LIMITS

Vector = npt.NDArray[np.float32]


class SafetyLimits:
    """Reduces an action to the bounds of the spec, then what is sent to the limits of the robot.

    Speeds, the workspace and the ranges of joints are bounded always. Acceleration and jerk are
    bounded from tick to tick, except where one of the former demands more, and except for a stop,
    which is immediate.
    """

    def __init__(
        self,
        contract: RobotContract,
        spec: PolicySpec,
        limits: Mapping[str, float],
        *,
        period_s: float | None = None,
        lasts_s: float | None = None,
    ):
        """limits: a value above 0 for each name in `ttm_policy.parameters.LIMITS`.

        period_s: the time between two commands, in seconds; None for a tick of the spec. lasts_s: how
        long a command may be in force at most, in seconds, which a workspace heeds; None for a tick.
        """
        lasts_s = spec.control_dt_s if lasts_s is None else lasts_s
        period_s = spec.control_dt_s if period_s is None else period_s
        self._contract = contract
        self._low, self._high = spec.action_limits
        self._parts = [
            PartLimiter(sink, contract, spec, period_s, lasts_s)
            for sink in contract.actions
            if sink.limits or sink.type in JOINT_TYPES
        ]
        self._motion = [spec.action_slices[name] for name in contract.motion_parts]
        self._joints: Mapping[str, JointLimit] = {}
        self.set_limits(limits)

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Take other limits from the next call of `apply` on. Raises `UserError` unless above 0."""
        require_above_0({name: limits[name] for name in LIMITS})
        self._limits = {name: float(limits[name]) for name in LIMITS}

    def set_joint_limits(self, joints: Mapping[str, JointLimit]) -> None:
        """Take the limits of a robot's description, in addition to those of the contract.

        Raises `UserError`, and changes nothing, if a joint of the contract is not in the description,
        or if both leave no position for it.
        """
        for sink in self._contract.actions:
            for field in sink.fields if sink.type in JOINT_TYPES else ():
                if field.path not in joints:
                    raise UserError(
                        f"joint '{field.path}' of {self._contract.path} is not in robot_description; "
                        "its limits are not applied: mend the name in one of them"
                    )
                limit = joints[field.path]
                if max(field.minimum, limit.lower) >= min(field.maximum, limit.upper):
                    raise UserError(
                        f"joint '{field.path}' may be {field.minimum:g} to {field.maximum:g} in "
                        f"{self._contract.path}, but {limit.lower:g} to {limit.upper:g} in "
                        "robot_description; mend one of them"
                    )
        self._joints = dict(joints)

    def apply(
        self,
        values: Vector,
        observation: Observation | None = None,
        *,
        late_s: float = 0.0,
        now_s: float | None = None,
    ) -> Vector:
        """Return the action that may be sent. An action within the limits keeps its bits.

        values: (A,) -> (A,). observation: where the robot is, by the names and in the units of the
        spec; only a workspace and limits of joints' speeds need it. late_s: how long ago the observation
        was made, in seconds. Since then the robot has moved on by the command before this one, or, if there
        may be several in that time, with now_s: the time of this command in seconds, on any clock.
        Raises `ArithmeticError` for NaN and infinity.
        """
        if not np.isfinite(values).all():
            raise ArithmeticError(
                f"the policy's action {values} is not finite; check the checkpoint's training"
            )
        limited = np.clip(values, self._low, self._high)
        limits, joints = self._limits, self._joints
        for part in self._parts:
            wanted = limited[part.where]
            limited[part.where] = part.limit(wanted, limits, joints, observation, late_s, now_s)
        return limited

    def halt(self, topics: Collection[str] | None = None) -> None:
        """Note that the robot was stopped: the next motion begins at rest, where the robot is then.

        topics: only those parts are at rest that are sent there; None for all.
        """
        for part in self._parts:
            if topics is None or part.topic in topics:
                part.halt()

    def stopped(self, values: Vector) -> Vector:
        """Return what remains of a command (A,) when the robot stands still: (A,).

        Nothing moves, and the gripper keeps what it holds. This is what `CommandCodec.stop` commands.
        """
        still = values.copy()
        for where in self._motion:
            still[where] = 0.0
        return still
