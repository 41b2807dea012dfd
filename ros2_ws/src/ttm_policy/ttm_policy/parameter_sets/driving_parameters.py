"""The parameters of every node by which a person drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ttm_policy.parameter_sets.common_parameters import (
    LONGEST_AGE_S,
    ContractPath,
    ControlRate,
    EStopRearm,
    EStopTimeout,
    SpecSource,
    StampedBaseCommands,
)
from ttm_policy.parameter_sets.declared_parameter import Parameter
from ttm_policy.parameter_sets.limit_parameters import LimitParameters


@dataclass(frozen=True)
class DrivingParameters(LimitParameters):
    """What `teleop_node` and `web_node` share."""

    contract: ContractPath = ""
    spec: SpecSource = ""
    rate_hz: ControlRate = 0.0
    policy: Annotated[
        str,
        Parameter(
            "Name of the policy node in whose place the person drives. It drives until somebody touches "
            "the controls, and again when he gives back. Empty for none."
        ),
    ] = ""
    max_age_s: Annotated[
        float,
        Parameter(
            "Largest age of what measures the joints and the gripper. The robot stands still "
            "while it is older.",
            unit="s",
            positive=True,
            maximum=LONGEST_AGE_S,
        ),
    ] = 0.5
    e_stop_rearm: EStopRearm = True
    e_stop_timeout_s: EStopTimeout = 0.0
    cmd_vel_stamped: StampedBaseCommands = True
