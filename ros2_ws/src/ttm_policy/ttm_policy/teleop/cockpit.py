"""What a person's controls need to know of the robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec
from ttm.sim.shipped import SHIPPED
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields
from ttm_policy.contract.measured_goals import goal_sources
from ttm_policy.contract.robot_contract import JOINT_TYPES, RobotContract
from ttm_policy.parameters import DrivingParameters
from ttm_policy.recording.spec import read_given_spec
from ttm_policy.teleop.controls import ControlMap, Controls, Goals


@dataclass(frozen=True)
class Cockpit:
    """The robot's contract, the spec of what is recorded, and the limits of its parameters."""

    contract: RobotContract
    spec: PolicySpec
    limits: Mapping[str, float]
    goals: Goals

    @property
    def measured(self) -> RobotContract:
        """The contract with the inputs that limits and goals of joints need, and no others."""
        needed = {source.name for source in goal_sources(self.contract)}
        if self.contract.workspace is not None:
            needed.add(self.contract.workspace.position)
        vectors = tuple(source for source in self.contract.vectors if source.name in needed)
        return replace(self.contract, images=(), vectors=vectors, executed=None)

    @property
    def is_goal(self) -> npt.NDArray[np.bool_]:
        """Which values of the action are goals of joints, (A,)."""
        found = np.zeros(self.spec.action_size, np.bool_)
        for sink in self.contract.actions:
            found[self.spec.action_slices[sink.name]] = sink.type in JOINT_TYPES
        return found

    def controls(self, controls: ControlMap) -> Controls:
        """Return the controls of a device."""
        return Controls(controls, self.contract, self.spec, self.goals)


def load_cockpit(parameters: DrivingParameters) -> Cockpit:
    """Read contract and spec. Raises `UserError` if they do not fit together."""
    contract = load_contract(parameters.contract)
    check_fields(contract)
    like = parameters.spec or ("" if parameters.contract else SHIPPED)
    unknown = {source.name: (1, 1) for source in contract.images}
    given = read_given_spec(like, contract, parameters.rate_hz)
    spec = given.complete(contract, unknown)
    return Cockpit(contract, spec, parameters.limits, Goals(spec.action_size))
