"""What new episodes hold, from a contract alone and from a spec that was given."""

from __future__ import annotations

import pytest

from ttm.policy import UserError
from ttm.policy.spec import SHIPPED
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.recording.episodes import read_given_spec

SIZES = {camera.name: (camera.height, camera.width) for camera in SPEC.cameras}


def test_a_value_that_moves_two_fingers_takes_a_spec() -> None:
    """The simulated robot reports 10 values, and its contract sends one of them to two joints."""
    contract = load_contract()
    assert read_given_spec(SHIPPED, contract, 0.0).complete(SIZES) == SPEC
    with pytest.raises(UserError, match=r"has 10 fields; its values are 11.* give a spec"):
        read_given_spec("", contract, 5.0).complete(SIZES)
