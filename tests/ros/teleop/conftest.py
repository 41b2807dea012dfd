"""What a person's controls know of the simulated robot."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.controls import Goals
from ttm_policy.teleop.source import Cockpit


@pytest.fixture
def cockpit() -> Cockpit:
    return Cockpit(load_contract(), SPEC, TeleopParameters().limits, Goals(SPEC.action_size))


@pytest.fixture
def still() -> np.ndarray:
    """The wish of a person who touches the controls and moves nothing: the gripper stays."""
    values = np.zeros(SPEC.action_size, np.float32)
    values[SPEC.action_slices["gripper"]] = np.nan
    return values
