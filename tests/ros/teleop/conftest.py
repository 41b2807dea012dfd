"""What a person's controls know of the simulated robot."""

from __future__ import annotations

import numpy as np
import pytest
from teleoperation import kitchen_context

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.teleop.source import TeleopContext


@pytest.fixture
def context() -> TeleopContext:
    return kitchen_context()


@pytest.fixture
def still() -> np.ndarray:
    """The wish of a person who touches the controls and moves nothing: the gripper stays."""
    values = np.zeros(SPEC.action_size, np.float32)
    values[SPEC.action_slices["gripper"]] = np.nan
    return values
