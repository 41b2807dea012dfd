"""What the limits leave of an action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from ttm.policy.errors import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.parameters import LIMITS

WIDE = dict.fromkeys(LIMITS, 100.0)


def _action(**parts: Any) -> np.ndarray:
    values = np.zeros(SPEC.action_size, dtype=np.float32)
    for name, part in parts.items():
        values[SPEC.action_slices[name]] = part
    return values


def test_stopped_is_the_command_that_the_codec_leaves_in_force_after_a_stop() -> None:
    contract = load_contract()
    codec, limits = CommandCodec(contract, SPEC), SafetyLimits(contract, SPEC, WIDE)
    action = np.linspace(0.1, 1.0, SPEC.action_size, dtype=np.float32)
    in_force = {**codec.encode(action, Time()), **codec.stop(Time())}
    assert np.array_equal(limits.stopped(action), codec.decode(in_force))
    assert np.count_nonzero(limits.stopped(action)) == 2  # gripper and terminate


def test_limits_keep_what_is_within_them_to_the_bit() -> None:
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    action = _action(
        arm_translation=(0.05, -0.05, 0.03),
        arm_rotation=(0.15, 0.1, -0.15),
        base=(0.8, -0.8),
        gripper=1,
    )
    assert np.array_equal(limits.apply(action), action)


def test_limits_shorten_displacements_and_cut_speeds() -> None:
    limits = SafetyLimits(
        load_contract(), SPEC, WIDE | {"max_translation_m": 0.01, "max_forward_m_s": 0.2}
    )
    limited = limits.apply(_action(arm_translation=(0.03, 0, 0.04), base=(-0.5, 0.7)))
    assert limited[SPEC.action_slices["arm_translation"]] == pytest.approx((0.006, 0, 0.008))
    assert limited[SPEC.action_slices["base"]] == pytest.approx((-0.2, 0.7))


def test_limits_cut_to_the_specs_bounds_and_refuse_nan() -> None:
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    assert limits.apply(_action(arm_rotation=(9, 0, 0)))[3] == pytest.approx(0.15)
    with pytest.raises(ArithmeticError, match="not finite"):
        limits.apply(_action(base=(np.nan, 0)))
    with pytest.raises(UserError, match=r"max_yaw_rad_s is 0\.0"):
        SafetyLimits(load_contract(), SPEC, WIDE | {"max_yaw_rad_s": 0.0})
