"""Stamps and the clock of ROS are compared with wall time."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from ttm.policy.errors import StaleObservation
from ttm_policy import control_loop
from ttm_policy.guards import Arrivals, ClockSteps


def test_a_stamp_that_stays_the_same_is_no_sign_of_life() -> None:
    arrivals = Arrivals()
    arrivals.add("head", 7, 1.0)
    arrivals.add("wrist", 7, 1.0)
    for wall_s in (1.2, 1.4, 1.6):
        arrivals.add("head", 7, wall_s)
        arrivals.add("wrist", round(wall_s * 10), wall_s)
    arrivals.require_alive(1.5, 0.5)
    with pytest.raises(StaleObservation, match=r"head has sent no new stamp for 0\.600 s"):
        arrivals.require_alive(1.6, 0.5)
    arrivals.add("head", 8, 1.7)
    arrivals.require_alive(1.8, 0.5)


def test_a_stamp_that_goes_back_is_a_sign_of_life() -> None:
    """Else a simulator that starts again would look dead for as long as it ran before."""
    arrivals = Arrivals()
    arrivals.add("head", 7, 1.0)
    arrivals.add("head", 3, 2.0)
    arrivals.require_alive(2.4, 0.5)


def test_forgotten_inputs_are_not_silent() -> None:
    arrivals = Arrivals()
    arrivals.add("head", 7, 1.0)
    arrivals.clear()
    arrivals.require_alive(100.0, 0.5)
    arrivals.add("head", 7, 100.0)
    arrivals.require_alive(100.4, 0.5)


def test_the_robot_holds_if_the_clock_of_ros_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its sensors go on. A clock that is set back goes on as well."""
    node, loop = MagicMock(), MagicMock(max_age_s=0.5)
    watchdog = control_loop.Watchdog(node, loop, MagicMock(), MagicMock(), None)
    for now_ns, wall_s in ((5, 1.0), (5, 1.4), (2, 1.6), (2, 2.0), (2, 2.2)):
        loop.hold.assert_not_called()
        node.get_clock().now().nanoseconds = now_ns
        monkeypatch.setattr(control_loop.time, "monotonic", lambda now_s=wall_s: now_s)
        watchdog.check_between_ticks()
    error = loop.hold.call_args.args[0]
    assert str(error).startswith("the clock of ROS (/clock) has sent no new stamp for 0.600 s")


def test_a_clock_that_is_set_is_told_once() -> None:
    steps = ClockSteps()
    day_ns = 86_400_000_000_000
    assert steps.step_s(2 * day_ns, 1.0, 1.0) == 0
    assert steps.step_s(2 * day_ns + 1_050_000_000, 2.0, 2.0) == 0, "50 ms, by slewing"
    assert steps.step_s(day_ns, 2.02, 2.02) == pytest.approx(-86401.07)
    assert steps.step_s(day_ns + 1_000_000_000, 3.02, 3.02) == 0
    assert steps.step_s(day_ns + 2_500_000_000, 4.02, 4.02) == pytest.approx(0.5)


def test_a_process_that_waits_between_two_clocks_tells_no_step() -> None:
    steps = ClockSteps()
    steps.step_s(0, 1.0, 1.0)
    assert steps.step_s(5_000_000_000, 3.0, 6.0) == 0
    assert steps.step_s(6_000_000_000, 7.0, 7.0) == 0
