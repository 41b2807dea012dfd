"""A running policy node over DDS under one fault after another: it stands still, says why, and recovers.

One process goes through the whole table. The robot moves when a test begins, and when it ends. At the end its
actions are compared with those of a run without any fault: no fault has left a trace in the memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_robot import FAULTS

from ttm.policy import PolicyRunner

CAN = "pick up the red can"
MAX_AGE_S, TICK_S = 0.6, 0.2
SLACK_S = 1.0
"""For a computer that is busy with other work."""

Robot = Any


@pytest.fixture(scope="module")
def policy(robot: Robot, policies: Any) -> Iterator[Any]:
    process = policies(
        instruction=CAN,
        use_sim_time=True,
        max_age_s=MAX_AGE_S,
        stop_after_s=600.0,
        e_stop_rearm=False,
    )
    robot.wait_for_motion()
    yield process
    assert process.exit_code is None
    assert process.end() == 0


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_stops_the_robot_and_the_node_says_why(
    name: str, robot: Robot, policy: Any, in_time: Any
) -> None:
    fault = FAULTS[name]

    def moved_on() -> float:
        """Let the fault begin and end; return for how long the robot moved."""
        begun_s = time.time()
        end = fault.begin(robot)
        robot.wait(lambda: fault.told(robot.message), f"the words '{fault.words}'")
        assert robot.level != b"\x00"
        robot.wait(lambda: robot.stands, "zero on all motion topics")
        stopped_s = time.time()
        time.sleep(2 * TICK_S)  # nothing that moves follows
        assert robot.stands
        assert robot.moved_at_s < stopped_s
        robot.repair()
        if end is not None:
            end()
        last_s = robot.moved_at_s
        robot.wait_for_motion()
        return last_s - begun_s

    in_time(MAX_AGE_S + TICK_S + SLACK_S, moved_on)


@pytest.mark.parametrize("seconds", [100.0, -0.4, -50.0])
def test_the_policy_goes_on_after_a_jump_of_the_clock(
    seconds: float, robot: Robot, policy: Any
) -> None:
    robot.jump(seconds)
    robot.wait_for_motion()


def test_a_frame_enters_the_memory_at_most_once(robot: Robot, policy: Any) -> None:
    """A camera of 2.5 Hz, on a policy of 5 Hz."""
    robot.silent.add("head")
    robot.wait(lambda: not robot.message.startswith("running"), "the last frame's end")
    frames, tick = robot.frames, robot.ticks[-1]
    robot.every["head"] = 6
    robot.silent.clear()
    robot.wait(lambda: "waiting for a new camera frame" in robot.message, "the pause")
    robot.wait(lambda: robot.ticks[-1] >= tick + 5, "five ticks")
    assert robot.ticks[-1] - tick <= robot.frames - frames + 1  # one may be on its way
    robot.repair()
    robot.wait_for_motion()


def test_no_fault_has_left_a_trace_in_the_memory(
    robot: Robot, policy: Any, checkpoint: Path, observations: list[Any]
) -> None:
    """Every action is that of a run without faults after as many memory writes."""
    robot.silent.update(robot.names)
    robot.wait(lambda: robot.stands, "the end")
    actions, ticks = list(robot.actions), robot.ticks[-1]
    robot.repair()
    runner = PolicyRunner.from_checkpoint(checkpoint, engine="torch")
    runner.reset(CAN)
    expected = []
    for _ in range(ticks):
        if runner.tick:
            runner.executed(np.zeros(runner.spec.action_size, np.float32))
        expected.append(runner.step(observations[0]).values)
    tick = 0
    for action in actions:
        while not np.array_equal(action, expected[tick]):
            tick += 1
            assert tick < ticks, "an action of another memory"
        tick += 1
    assert len(actions) > ticks / 2
