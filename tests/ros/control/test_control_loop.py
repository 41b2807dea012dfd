"""When the policy acts, holds and stops, and what a session knows about its ticks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from stepped_loop import SteppedLoop

from ttm.policy import PolicyRunner
from ttm.policy.errors import MalformedObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.control_loop import Inference, LoopState, PendingTick
from ttm_policy.diagnostics import TickRecord
from ttm_policy.inputs import StampedObservation
from ttm_policy.limits import SafetyLimits
from ttm_policy.parameters import LIMITS, PolicyParameters

CAN = "pick up the red can"
WIDE = dict.fromkeys(LIMITS, 100.0)


@pytest.fixture
def loop(checkpoint: Path) -> SteppedLoop:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    limits = SafetyLimits(load_contract(), SPEC, WIDE)
    return SteppedLoop(runner, limits, PolicyParameters(max_age_s=0.5, stop_after_s=2.0))


def _seen(observation: Any, stamp_s: float) -> StampedObservation:
    return StampedObservation(observation, round(stamp_s * 1e9), round(stamp_s * 1e9))


def test_late_holds_then_stops_until_somebody_resumes(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    assert loop.step(_seen(observations[0], 10.0), 10.0) is not None
    assert loop.step(_seen(observations[0], 10.0), 10.6) is None
    assert (loop.state, loop.runner.tick) == (LoopState.HOLDING, 1)
    assert loop.step(_seen(observations[1], 10.8), 10.8) is not None  # by itself
    assert loop.step(_seen(observations[1], 10.8), 12.9) is None
    assert loop.state is LoopState.STOPPED
    assert loop.step(_seen(observations[2], 13.0), 13.0) is None
    loop.resume()
    assert loop.step(_seen(observations[2], 13.0), 13.0) is not None
    assert loop.runner.tick == 3


def _damaged() -> Any:
    raise MalformedObservation("a damaged image")


def test_a_bad_observation_leaves_the_memory_to_the_bit(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    loop.step(_seen(observations[0], 10.0), 10.0)
    before = loop.snapshot()
    broken = {**observations[1], "ee_pose": np.full(7, np.nan, np.float32)}
    assert loop.step(_seen(broken, 10.2), 10.2) is None
    loop.hold(MalformedObservation("a damaged image"), 10.4)
    did = np.ones(SPEC.action_size, np.float32)
    unseen = StampedObservation(observations[1], 0, 10_600_000_000, executed=did, see=_damaged)
    with pytest.raises(MalformedObservation, match="a damaged image"):
        loop.infer(unseen)
    after = loop.snapshot()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert loop.problem == "a damaged image"


def test_before_the_first_observation_there_is_nothing_to_hold(loop: SteppedLoop) -> None:
    loop.hold(MalformedObservation("nothing yet"), 100.0)
    assert loop.state is LoopState.WAITING


def test_e_stop_outlasts_resets(loop: SteppedLoop, observations: list[Any]) -> None:
    loop.set_e_stop("it is pressed")
    loop.reset(CAN)
    assert loop.step(_seen(observations[0], 1.0), 1.0) is None
    loop.set_e_stop("")
    assert loop.step(_seen(observations[0], 1.0), 1.0) is not None


def test_what_becomes_of_an_instruction_outlasts_an_e_stop(loop: SteppedLoop) -> None:
    """A publisher of the emergency stop that was just found stops the robot for a moment as well."""

    def after_e_stop() -> tuple[LoopState, str]:
        loop.set_e_stop("its state is not known yet")
        loop.set_e_stop("")
        return loop.state, loop.problem

    loop.prepare()
    assert after_e_stop() == (LoopState.PREPARING, "")
    loop.runner.instruction = None
    loop.refuse("no embedding")
    assert after_e_stop() == (LoopState.NO_INSTRUCTION, "no embedding")
    loop.prepare()
    assert after_e_stop() == (LoopState.PREPARING, "")
    loop.reset(CAN)
    assert after_e_stop() == (LoopState.WAITING, "")
    loop.runner.instruction = None
    assert after_e_stop() == (LoopState.NO_INSTRUCTION, "")


@pytest.mark.parametrize("stamp_s", [9.4, 10.6])
def test_stamps_too_far_from_the_clock_are_held_on_both_sides(
    loop: SteppedLoop, observations: list[Any], stamp_s: float
) -> None:
    assert loop.step(_seen(observations[0], 10.0), 10.0) is not None
    assert loop.step(_seen(observations[1], stamp_s), 10.0) is None
    assert (loop.state, loop.runner.tick) == (LoopState.HOLDING, 1)
    assert ("ahead of the clock" in loop.problem) == (stamp_s > 10.0)


def test_stamps_slightly_ahead_of_the_clock_are_accepted(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    assert loop.step(_seen(observations[0], 10.2), 10.0) is not None


def _reporting(observation: Any, stamp_s: float, did: np.ndarray) -> StampedObservation:
    return StampedObservation(observation, round(stamp_s * 1e9), round(stamp_s * 1e9), did)


def test_the_command_after_its_limits_is_the_previous_action(
    checkpoint: Path, observations: list[Any]
) -> None:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    narrow = SafetyLimits(load_contract(), SPEC, dict.fromkeys(LIMITS, 0.001))
    loop = SteppedLoop(runner, narrow, PolicyParameters(max_age_s=0.5, stop_after_s=2.0))
    tick = loop.step(_seen(observations[0], 10.0), 10.0)
    assert tick is not None
    action, command = tick
    assert not np.array_equal(action, command)
    assert np.array_equal(runner.previous_action, command)


def test_after_a_stop_the_previous_action_is_to_stand_still(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    loop.stand_still()  # before the first tick there is no previous action
    tick = loop.step(_seen(observations[0], 10.0), 10.0)
    assert tick is not None
    _, command = tick
    loop.stand_still()
    now = loop.runner.previous_action
    for name in ("arm_translation", "arm_rotation", "base"):
        assert command[SPEC.action_slices[name]].any()
        assert not now[SPEC.action_slices[name]].any()
    gripper = SPEC.action_slices["gripper"]
    assert np.array_equal(now[gripper], command[gripper])


def test_what_the_robot_reports_is_the_previous_action(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    did = np.full(SPEC.action_size, 0.01, np.float32)
    runner = loop.runner
    assert loop.step(_reporting(observations[0], 10.0, did), 10.0) is not None  # the last episode's
    start = runner.snapshot()
    assert loop.step(_reporting(observations[1], 10.2, did), 10.2) is not None
    after = runner.snapshot()
    runner.restore({**start, "previous_action": did})
    runner.step(observations[1])
    expected = runner.snapshot()
    assert all(np.array_equal(after[name], expected[name]) for name in after)
    assert loop.step(_reporting(observations[2], 10.4, did * np.nan), 10.4) is None
    assert (loop.state, runner.tick) == (LoopState.HOLDING, 2)
    assert "the executed action" in loop.problem


NOW_NS = 100_000_000_000


def record(*, lockstep: bool = False) -> TickRecord:
    node, loop, inputs = MagicMock(), MagicMock(), SimpleNamespace(lockstep=lockstep)
    node.get_clock().now().nanoseconds = NOW_NS
    loop.runner.spec = SPEC
    return TickRecord(node, loop, inputs, MagicMock(), MagicMock())  # type: ignore[arg-type]


def pending(age_s: float = 0.0) -> PendingTick:
    stamp_ns = NOW_NS - round(age_s * 1e9)
    return PendingTick(StampedObservation({}, stamp_ns, stamp_ns), 5.0, Time(), 0)


def test_each_part_that_the_limits_changed_is_counted() -> None:
    kept = record()
    action: Any = np.full(SPEC.action_size, 0.1, np.float32)
    command = action.copy()
    command[SPEC.action_slices["base"]] = 0.0
    for sent in (command, action, command):
        kept.finish(pending(), Inference(action), sent)
    assert kept.statistics.limits_hit == {"base": 2}


def test_the_delay_is_the_age_of_the_input_and_the_usual_time_of_a_tick() -> None:
    kept = record()
    assert kept.begin(pending(0.05), NOW_NS) == pytest.approx(0.05)
    for seconds in (9.0, *[0.03] * 6, 9.0, *[0.03] * 4):  # outliers do not count
        kept.statistics.answer(5.0, 5.0 + seconds, 0.1)
    assert kept.begin(pending(0.07), NOW_NS) == pytest.approx(0.1)


def test_in_lockstep_nothing_is_late() -> None:
    assert record(lockstep=True).begin(pending(0.05), NOW_NS) == 0.0
