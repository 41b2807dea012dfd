"""What a person's controls need to know of the robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ttm.policy.spec import PolicySpec
from ttm.sim.shipped import SHIPPED
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields
from ttm_policy.contract.robot_contract import RobotContract
from ttm_policy.parameters import LIMITS, DrivingParameters
from ttm_policy.recording.spec import read_given_spec
from ttm_policy.teleop.controls import ControlMap, Controls, Vector


class Goals:
    """Where joints and gripper were sent last, (A,), or NaN."""

    def __init__(self, action_size: int) -> None:
        self.values: Vector = np.full(action_size, np.nan, np.float32)


@dataclass(frozen=True)
class Cockpit:
    """The robot's contract, the spec of what is recorded, and the limits of its parameters."""

    contract: RobotContract
    spec: PolicySpec
    limits: Mapping[str, float]
    goals: Goals

    def controls(self, controls: ControlMap) -> Controls:
        """Return the controls of a device."""
        return Controls(controls, self.contract, self.spec, self.goals)


def load_cockpit(parameters: DrivingParameters) -> Cockpit:
    """Read contract and spec. Raises `UserError` if they do not fit together."""
    contract = load_contract(parameters.contract)
    check_fields(contract)
    like = parameters.spec or ("" if parameters.contract else SHIPPED)
    unknown = {source.name: (1, 1) for source in contract.images}
    spec = read_given_spec(like, parameters.rate_hz).complete(contract, unknown)
    limits = {name: getattr(parameters, name) for name in LIMITS}
    return Cockpit(contract, spec, limits, Goals(spec.action_size))
