"""Every way out of moving: afterwards a fresh tick follows, or zero is the last command.

Each row runs with living sensors and with sensors that fell silent just before.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lifecycle_msgs.msg import Transition

CAN, BOX = "pick up the red can", "pick up the blue box"
LONGEST_END_S = 2.0
SLACK_S = 1.0
"""For a computer that is busy with other work."""
AWHILE_S = 0.5

Robot = Any
SENSORS = pytest.mark.parametrize("sensors", ["alive", "silent"])
STAYS: dict[str, Callable[[Robot], object]] = {
    "reset": lambda robot: robot.call("reset_memory"),
    "restore": lambda robot: robot.call("restore_memory"),
    "new instruction": lambda robot: robot.instruct(BOX),
}
"""What the policy goes on after."""
ENDS: dict[str, Callable[[Robot, Any], object]] = {
    "deactivate": lambda robot, _: robot.transition(Transition.TRANSITION_DEACTIVATE),
    "deactivate and clean up": lambda robot, _: [
        robot.transition(Transition.TRANSITION_DEACTIVATE),
        robot.transition(Transition.TRANSITION_CLEANUP),
    ],
    "shut down": lambda robot, _: robot.transition(Transition.TRANSITION_ACTIVE_SHUTDOWN),
    "SIGINT": lambda _, process: process.send(signal.SIGINT),
    "SIGTERM": lambda _, process: process.send(signal.SIGTERM),
    "SIGHUP": lambda _, process: process.send(signal.SIGHUP),
    "SIGQUIT": lambda _, process: process.send(signal.SIGQUIT),
}
"""What no tick follows after."""


@pytest.fixture
def start(robot: Robot, start_policy: Any, tmp_path: Path) -> Callable[..., Any]:
    """Start a policy node and wait until it moves the robot."""
    robot.repair()

    def begin(fault: str = "", **parameters: Any) -> Any:
        snapshot = {"snapshot_path": str(tmp_path / "memory.npz"), "stop_after_s": 600.0}
        process = start_policy(fault, instruction=CAN, use_sim_time=True, **snapshot, **parameters)
        robot.wait_for_motion()
        return process

    return begin


def _end(robot: Robot, process: Any) -> None:
    process.send(signal.SIGTERM)
    robot.wait(lambda: process.exit_code is not None, "the end of the process")


def _fall_silent(robot: Robot, sensors: str) -> None:
    if sensors == "silent":
        robot.silent.update(robot.names)


def test_after_what_changes_the_memory_a_fresh_tick_follows_or_zero_is_last(
    robot: Robot, start: Any
) -> None:
    process = start()
    assert robot.call("snapshot_memory").success
    for change in STAYS.values():
        for sensors in ("alive", "silent"):
            robot.instruct(CAN)
            robot.wait_for_motion()
            _fall_silent(robot, sensors)
            change(robot)
            if sensors == "silent":
                # What was seen just before may still be acted on, until it is too old.
                robot.wait(lambda: _stands_for_long(robot), "zero on all motion topics")
                robot.repair()
            robot.wait_for_motion()
    _end(robot, process)


def _stands_for_long(robot: Robot) -> bool:
    return robot.stands and time.time() - robot.moved_at_s > 2 * AWHILE_S


@SENSORS
def test_a_policy_that_says_it_is_done_stands_still_without_sensors(
    robot: Robot, start: Any, sensors: str
) -> None:
    process = start("terminate")
    _fall_silent(robot, sensors)
    if sensors == "silent":
        robot.wait(lambda: robot.stands, "zero on all motion topics")
        robot.repair()
    robot.wait_for_motion()
    _end(robot, process)


@SENSORS
@pytest.mark.parametrize("name", list(ENDS))
def test_the_last_command_is_zero(name: str, sensors: str, robot: Robot, start: Any) -> None:
    process = start()
    _fall_silent(robot, sensors)
    begun_s = time.monotonic()
    ENDS[name](robot, process)
    if name.startswith("SIG"):
        robot.wait(lambda: process.exit_code is not None, "the end of the process")
        assert time.monotonic() - begun_s <= LONGEST_END_S + SLACK_S
        assert process.exit_code == 0
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    time.sleep(AWHILE_S)
    assert robot.stands
    if process.exit_code is None:
        _end(robot, process)


@SENSORS
def test_an_exception_in_a_tick_stops_the_robot_and_ends_the_process(
    robot: Robot, start_policy: Any, sensors: str
) -> None:
    robot.repair()
    process = start_policy("crash", instruction=CAN, use_sim_time=True)
    moved_s = time.time()
    robot.wait(lambda: robot.moved_at_s > moved_s, "motion")
    _fall_silent(robot, sensors)
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    robot.repair()
    robot.wait(lambda: process.exit_code is not None, "the end of the process")
    assert process.exit_code == 1
    assert robot.stands


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_the_policy_loads_never_activates_it(
    robot: Robot, start_policy: Any, number: signal.Signals
) -> None:
    robot.repair()
    robot.message, moved_at_s = "", robot.moved_at_s
    process = start_policy("slow", instruction=CAN, use_sim_time=True)
    robot.wait(lambda: "loading" in robot.message, "the configuring node")
    begun_s = time.monotonic()
    process.send(number)
    robot.wait(lambda: process.exit_code is not None, "the end of the process")
    assert time.monotonic() - begun_s <= LONGEST_END_S + SLACK_S
    assert process.exit_code == 0
    time.sleep(AWHILE_S)
    assert robot.moved_at_s == moved_at_s
