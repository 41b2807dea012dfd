"""When the policy acts, holds and stops, and what the limits leave of an action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.policy.errors import MalformedObservation, UserError
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.kitchen.env import SPEC
from ttm_policy.contract import LIMITS, load_contract
from ttm_policy.control_loop import ControlLoop, StampedObservation, State
from ttm_policy.limits import SafetyLimits

CAN = "pick up the red can"
WIDE = dict.fromkeys(LIMITS, 100.0)


@pytest.fixture
def loop(checkpoint: Path) -> ControlLoop:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    return ControlLoop(runner, limits, max_age_s=0.5, stop_after_s=2.0)


def _seen(observation: Any, stamp_s: float) -> StampedObservation:
    return StampedObservation(observation, round(stamp_s * 1e9), round(stamp_s * 1e9))


def test_late_holds_then_stops_until_somebody_resumes(
    loop: ControlLoop, observations: list[Any]
) -> None:
    assert loop.step(_seen(observations[0], 10.0), 10.0) is not None
    assert loop.step(_seen(observations[0], 10.0), 10.6) is None
    assert (loop.state, loop.runner.tick) == (State.HOLDING, 1)
    assert loop.step(_seen(observations[1], 10.8), 10.8) is not None  # by itself
    assert loop.step(_seen(observations[1], 10.8), 12.9) is None
    assert loop.state is State.STOPPED
    assert loop.step(_seen(observations[2], 13.0), 13.0) is None
    loop.resume()
    assert loop.step(_seen(observations[2], 13.0), 13.0) is not None
    assert loop.runner.tick == 3


def test_a_bad_observation_leaves_the_memory_to_the_bit(
    loop: ControlLoop, observations: list[Any]
) -> None:
    loop.step(_seen(observations[0], 10.0), 10.0)
    before = loop.snapshot()
    broken = {**observations[1], "ee_pose": np.full(7, np.nan, np.float32)}
    assert loop.step(_seen(broken, 10.2), 10.2) is None
    loop.hold(MalformedObservation("a damaged image"), 10.4)
    after = loop.snapshot()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert loop.problem == "a damaged image"


def test_before_the_first_observation_there_is_nothing_to_hold(loop: ControlLoop) -> None:
    loop.hold(MalformedObservation("nothing yet"), 100.0)
    assert loop.state is State.WAITING


def test_e_stop_outlasts_resets(loop: ControlLoop, observations: list[Any]) -> None:
    loop.set_e_stop(True)
    loop.reset(CAN)
    assert loop.step(_seen(observations[0], 1.0), 1.0) is None
    loop.set_e_stop(False)
    assert loop.step(_seen(observations[0], 1.0), 1.0) is not None


def _action(**parts: Any) -> np.ndarray:
    values = np.zeros(SPEC.action_size, dtype=np.float32)
    for name, part in parts.items():
        values[SPEC.action_slices[name]] = part
    return values


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
