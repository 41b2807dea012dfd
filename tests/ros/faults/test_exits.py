"""Every way out of moving: afterwards a fresh tick follows, or zero is the last command.

Each row of the tables runs with living sensors and with sensors that fell silent just before.
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


def _transitions(*numbers: int) -> Callable[[Robot], object]:
    return lambda robot: [robot.transition(number) for number in numbers]


GOES_ON: dict[str, tuple[Callable[[Robot], object], Callable[[Robot], object] | None]] = {
    "reset": (lambda robot: robot.call("reset_memory"), None),
    "restore": (lambda robot: robot.call("restore_memory"), None),
    "new instruction": (lambda robot: robot.instruct(BOX), None),
    "deactivate": (
        _transitions(Transition.TRANSITION_DEACTIVATE),
        _transitions(Transition.TRANSITION_ACTIVATE),
    ),
    "deactivate and clean up": (
        _transitions(Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP),
        _transitions(Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE),
    ),
}
"""What a process lives on after, and how it begins again; None if it does so by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ENDS: dict[str, Callable[[Robot, Any], object]] = {
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


def _fall_silent(robot: Robot, sensors: str) -> None:
    if sensors == "silent":
        robot.silent.update(robot.names)


def _stands_for_long(robot: Robot) -> bool:
    return robot.stands and time.time() - robot.moved_at_s > 2 * AWHILE_S


def test_the_robot_moves_again_only_after_a_fresh_tick(robot: Robot, start: Any) -> None:
    """One process goes through the whole table, so that each exit is followed by a new beginning."""
    process = start()
    assert robot.call("snapshot_memory").success
    for name, (leave, begin) in GOES_ON.items():
        for sensors in ("alive", "silent"):
            robot.instruct(CAN)
            robot.wait_for_motion()
            _fall_silent(robot, sensors)
            leave(robot)
            if sensors == "silent" or begin is not None:
                # What was seen just before may still be acted on, until it is too old.
                robot.wait(lambda: _stands_for_long(robot), f"zero after {name}, sensors {sensors}")
                robot.repair()
            if begin is not None:
                begin(robot)
            robot.wait_for_motion()
    assert process.end() == 0


def test_a_policy_that_says_it_is_done_stands_still_without_sensors(
    robot: Robot, start: Any
) -> None:
    process = start("terminate")
    _fall_silent(robot, "silent")
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    robot.repair()
    robot.wait_for_motion()
    assert process.end() == 0


@SENSORS
@pytest.mark.parametrize("name", list(ENDS))
def test_the_last_command_is_zero(
    name: str, sensors: str, robot: Robot, start: Any, in_time: Any
) -> None:
    def ended() -> float:
        """Start and end a process; return how long the end took."""
        robot.repair()
        process = start()
        _fall_silent(robot, sensors)
        begun_s = time.monotonic()
        ENDS[name](robot, process)
        if name.startswith("SIG"):
            assert process.wait() == 0
        took_s = time.monotonic() - begun_s
        robot.wait(lambda: robot.stands, "zero on all motion topics")
        time.sleep(AWHILE_S)
        assert robot.stands
        assert process.end() == 0
        return took_s if name.startswith("SIG") else 0.0

    in_time(LONGEST_END_S + SLACK_S, ended)


@SENSORS
def test_an_exception_in_a_tick_stops_the_robot_and_ends_the_process(
    robot: Robot, start_policy: Any, sensors: str
) -> None:
    robot.repair()
    process = start_policy("crash", instruction=CAN, use_sim_time=True, stop_after_s=600.0)
    moved_s = time.time()
    robot.wait(lambda: robot.moved_at_s > moved_s, "motion")
    _fall_silent(robot, sensors)
    robot.wait(lambda: robot.stands, "zero on all motion topics")
    robot.repair()
    assert process.wait() == 1
    robot.wait(lambda: robot.stands, "zero at the end")


def test_a_signal_while_the_policy_loads_never_activates_it(
    robot: Robot, start_policy: Any, in_time: Any
) -> None:
    """Four processes load at the same time, since each takes a while to come so far."""
    robot.repair()
    moved_at_s = robot.moved_at_s

    def ended() -> float:
        """Start and end the processes; return how long the slowest took to end."""
        robot.message = ""
        started = [start_policy("slow", instruction=CAN, use_sim_time=True) for _ in SIGNALS]
        took_s = []
        for number, process in zip(SIGNALS, started, strict=True):
            robot.wait(process.loading.exists, "the configuring node")
            robot.wait(lambda: "loading" in robot.message, "its diagnostics")
            begun_s = time.monotonic()
            process.send(number)
            assert process.wait() == 0
            took_s.append(time.monotonic() - begun_s)
        return max(took_s)

    in_time(LONGEST_END_S + SLACK_S, ended)
    time.sleep(AWHILE_S)
    assert robot.moved_at_s == moved_at_s
