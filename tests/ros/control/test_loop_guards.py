"""What the loop does about frames that repeat, steady time, and a policy that is stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepped_loop import SteppedLoop

from ttm.policy import PolicyRunner
from ttm.policy.errors import MalformedObservation, StaleObservation
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract
from ttm_policy.control_loop import LoopState
from ttm_policy.inputs import StampedObservation
from ttm_policy.limits import SafetyLimits
from ttm_policy.parameters import LIMITS, PolicyParameters

DT_S = SPEC.control_dt_s


@pytest.fixture
def loop(checkpoint: Path) -> SteppedLoop:
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset("pick up the red can")
    limits = SafetyLimits(load_contract(), SPEC, dict.fromkeys(LIMITS, 100.0))
    return SteppedLoop(runner, limits, PolicyParameters(max_age_s=0.5, stop_after_s=2.0))


def _seen(
    observation: Any, stamp_s: float, *, newest_s: float | None = None, **frames_s: float
) -> StampedObservation:
    frames = {name: round(s * 1e9) for name, s in frames_s.items()}
    newest_ns = None if newest_s is None else round(newest_s * 1e9)
    stamp_ns = round(stamp_s * 1e9)
    return StampedObservation(observation, stamp_ns, stamp_ns, None, newest_ns, frames)


def test_a_frame_enters_the_memory_once(loop: SteppedLoop, observations: list[Any]) -> None:
    seen = observations[0]
    assert loop.lacks_frame({"head": -1}, 10.0, 10.0)  # which has sent none yet
    assert loop.step(_seen(seen, 10.0, head=10.0, wrist=10.0), 10.0) is not None
    assert loop.step(_seen(seen, 10.2, head=10.2, wrist=10.0), 10.2) is None
    assert (loop.state, loop.runner.tick) == (
        LoopState.RUNNING,
        1,
    )  # the last command stays in force
    assert loop.step(_seen(seen, 10.4, head=10.4, wrist=10.0), 10.4) is None
    assert (loop.state, loop.runner.tick) == (LoopState.PAUSED, 1)
    assert loop.problem == "camera 'wrist' is slower than the 5 Hz of the policy"
    assert loop.held_ticks == 0
    assert loop.step(_seen(seen, 10.4, head=10.4, wrist=10.4), 10.5) is not None
    assert (loop.state, loop.runner.tick, loop.problem) == (LoopState.RUNNING, 2, "")


def test_a_frame_that_was_refused_may_come_again(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    """It has not entered the memory, since another input was bad."""
    bad = {**observations[0], "ee_pose": np.full(7, np.nan, np.float32)}
    assert loop.step(_seen(bad, 10.0, head=10.0), 10.0) is None
    assert loop.step(_seen(observations[0], 10.0, head=10.0), 10.1) is not None


def test_frames_are_new_again_after_the_clock_was_set_back(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    assert loop.step(_seen(observations[0], 100.0, head=100.0), 100.0) is not None
    assert loop.step(_seen(observations[0], 3.0, head=3.0), 3.0) is not None
    assert loop.step(_seen(observations[0], 3.0, head=3.0), 3.2) is None


def test_the_newest_input_must_not_be_ahead_of_the_clock(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    assert loop.step(_seen(observations[0], 10.0), 10.0) is not None
    assert loop.step(_seen(observations[0], 10.2, newest_s=110.0), 10.2) is None
    assert "ahead of the clock" in loop.problem


def test_the_stop_after_a_hold_counts_steady_time(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    seen = _seen(observations[0], 1000.0)
    assert loop.accepts(seen, 1000.0, 5.0)
    loop.finish(loop.infer(seen).action, 5.0, seen)
    loop.hold(MalformedObservation("bad"), 6.9)
    assert loop.state is LoopState.HOLDING
    loop.hold(MalformedObservation("bad"), 7.1, ticked=False)
    assert (loop.state, loop.held_ticks) == (LoopState.STOPPED, 1)


def test_a_policy_that_decides_nothing_is_noticed(
    loop: SteppedLoop, observations: list[Any]
) -> None:
    loop.require_ticks(100.0)  # before the first tick there is no command in force
    loop.step(_seen(observations[0], 10.0), 10.0)
    loop.require_ticks(10.0 + 0.5 + DT_S)
    with pytest.raises(StaleObservation, match="has decided nothing for"):
        loop.require_ticks(10.01 + 0.5 + DT_S)
    loop.hold(MalformedObservation("bad"), 10.8)
    loop.require_ticks(100.0)


def test_the_emergency_stop_keeps_its_reason_through_a_reset(loop: SteppedLoop) -> None:
    loop.set_e_stop("it is pressed")
    loop.resume()
    assert (loop.state, loop.problem) == (LoopState.E_STOP, "it is pressed")
    loop.set_e_stop("")
    assert (loop.state, loop.problem) == (LoopState.WAITING, "")
