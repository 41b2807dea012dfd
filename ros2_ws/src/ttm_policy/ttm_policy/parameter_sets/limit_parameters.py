"""The parameters that limit what a node sends to the robot.

All of them bound the numbers in the messages, after `scale` and `per_second` of the contract.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ttm_policy.parameter_sets.declared_parameter import NodeParameters, Parameter, parameters_of


def _limit(help_text: str, unit: str, most: float | None = None) -> Parameter:
    """most: what no robot exceeds, so that a limit of speed cannot be switched off."""
    return Parameter(help_text, unit=unit, maximum=most, positive=True, is_limit=True, live=True)


@dataclass(frozen=True)
class LimitParameters(NodeParameters):
    """Limits of speed, and of acceleration and jerk, which may be inf for none."""

    max_forward_m_s: Annotated[
        float, _limit("Limit of the base's speed, both ways.", "m/s", 10)
    ] = 0.5
    max_forward_accel_m_s2: Annotated[
        float, _limit("Limit of the base's acceleration.", "m/s²")
    ] = math.inf
    max_forward_jerk_m_s3: Annotated[float, _limit("Limit of the base's jerk.", "m/s³")] = math.inf
    max_yaw_rad_s: Annotated[float, _limit("Limit of the base's turning speed.", "rad/s", 20)] = 1.0
    max_yaw_accel_rad_s2: Annotated[
        float, _limit("Limit of the base's turning acceleration.", "rad/s²")
    ] = math.inf
    max_yaw_jerk_rad_s3: Annotated[float, _limit("Limit of the base's turning jerk.", "rad/s³")] = (
        math.inf
    )
    max_translation_m: Annotated[
        float, _limit("Limit of the gripper's displacement.", "m per tick", 1)
    ] = 0.1
    max_translation_accel_m_s2: Annotated[
        float, _limit("Limit of the gripper's acceleration.", "m/s²")
    ] = math.inf
    max_translation_jerk_m_s3: Annotated[float, _limit("Limit of the gripper's jerk.", "m/s³")] = (
        math.inf
    )
    max_rotation_rad: Annotated[
        float, _limit("Limit of the gripper's rotation.", "rad per tick", 3)
    ] = 0.3
    max_rotation_accel_rad_s2: Annotated[
        float, _limit("Limit of the gripper's turning acceleration.", "rad/s²")
    ] = math.inf
    max_rotation_jerk_rad_s3: Annotated[
        float, _limit("Limit of the gripper's turning jerk.", "rad/s³")
    ] = math.inf
    max_joint_rad_s: Annotated[
        float,
        _limit("Limit of each joint's speed. Joints that slide have it in m/s.", "rad/s", 50),
    ] = 1.0
    max_joint_accel_rad_s2: Annotated[
        float, _limit("Limit of each joint's acceleration.", "rad/s²")
    ] = math.inf
    max_joint_jerk_rad_s3: Annotated[float, _limit("Limit of each joint's jerk.", "rad/s³")] = (
        math.inf
    )

    @property
    def limits(self) -> dict[str, float]:
        """The value of each limit by its name, without the other parameters of the node."""
        return {name: getattr(self, name) for name in LIMITS}


LIMITS = tuple(p.name for p in parameters_of(LimitParameters))
"""The names of all limits."""


@dataclass(frozen=True)
class LimitKind:
    """A limit that a contract may name, with the parameters that bound its derivatives."""

    speed: str
    acceleration: str
    jerk: str
    moves: str
    """What it limits: `linear` or `angular` fields of a twist, or `joints`."""
    per_tick: bool = False
    """Whether the limit is a displacement in one tick instead of a speed."""


def _kind(name: str, unit: str, moves: str, speed: str, *, per_tick: bool = False) -> LimitKind:
    acceleration, jerk = f"max_{name}_accel_{unit}_s2", f"max_{name}_jerk_{unit}_s3"
    return LimitKind(speed, acceleration, jerk, moves, per_tick)


_KINDS = (
    _kind("forward", "m", "linear", "max_forward_m_s"),
    _kind("yaw", "rad", "angular", "max_yaw_rad_s"),
    _kind("translation", "m", "linear", "max_translation_m", per_tick=True),
    _kind("rotation", "rad", "angular", "max_rotation_rad", per_tick=True),
    _kind("joint", "rad", "joints", "max_joint_rad_s"),
)
LIMIT_KINDS: Mapping[str, LimitKind] = {kind.speed: kind for kind in _KINDS}
"""The limits that a contract may name."""
