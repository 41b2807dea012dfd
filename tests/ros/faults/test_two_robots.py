"""Two robots in two namespaces of one domain: what happens to one does not reach the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from failing_robot import FAULTS, FailingRobot

from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import load_contract

CAN, BOX = "pick up the red can", "pick up the blue box"
PATIENT = {"use_sim_time": True, "stop_after_s": 600.0}  # a busy machine is no fault here


@pytest.fixture
def robots(contract_file: Path, observations: list[Any]) -> Iterator[list[FailingRobot]]:
    rclpy.init()
    contract = load_contract(contract_file)
    both = [FailingRobot(contract, SPEC, observations[0], name) for name in ("left", "right")]
    yield both
    for robot in both:
        robot.close()
    rclpy.shutdown()


def test_two_robots_have_clocks_stops_and_diagnostics_of_their_own(
    robots: list[FailingRobot], start_policy: Any
) -> None:
    left, right = robots
    processes = [
        start_policy(namespace=name, instruction=text, **PATIENT)
        for name, text in (("left", CAN), ("right", BOX))
    ]
    for robot in robots:
        robot.wait_for_motion()

    left.clock_runs = False
    left.wait(lambda: "no new stamp" in left.message, "its clock")
    left.wait(lambda: left.stands, "zero")
    right.wait_for_motion()
    left.repair()
    left.wait_for_motion()

    FAULTS["e-stop, reliable"].begin(right)
    right.wait(lambda: "it is pressed" in right.message, "the stop")
    right.wait(lambda: right.stands, "zero")
    left.wait_for_motion()
    assert [process.end() for process in processes] == [0, 0]
