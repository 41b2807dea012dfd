"""When the emergency stop lets the robot move."""

from __future__ import annotations

from ttm_policy.guards.e_stop import FIRST_STATE_S, EStop


def test_without_a_button_the_robot_may_move() -> None:
    assert EStop(rearm=True, timeout_s=0.0).problem(0.0, publishers=0) == ""


def test_a_release_waits_to_be_armed() -> None:
    stop = EStop(rearm=True, timeout_s=0.0)
    stop.heard(True, 1.0)
    assert stop.problem(1.0, 1) == "it is pressed"
    assert not stop.arm()
    stop.heard(False, 2.0)
    assert "call the service rearm" in stop.problem(2.0, 1)
    assert "call the service rearm" in stop.problem(1e6, 0)
    assert stop.arm()
    assert stop.problem(2.1, 1) == ""
    stop.heard(False, 3.0)
    assert stop.problem(3.0, 1) == ""


def test_without_rearming_a_release_is_enough() -> None:
    stop = EStop(rearm=False, timeout_s=0.0)
    stop.heard(True, 1.0)
    assert stop.problem(1.0, 1)
    stop.heard(False, 2.0)
    assert stop.problem(2.0, 1) == ""


def test_the_first_message_of_a_publisher_is_awaited_for_a_moment() -> None:
    stop = EStop(rearm=True, timeout_s=0.0)
    assert stop.problem(5.0, 1) == "its state is not known yet"
    assert stop.problem(4.99 + FIRST_STATE_S, 1) == "its state is not known yet"
    assert stop.problem(5.0 + FIRST_STATE_S, 1) == ""
    stop = EStop(rearm=True, timeout_s=0.0)
    assert stop.problem(5.0, 1)
    stop.heard(False, 5.1)
    assert stop.problem(5.1, 1) == ""


def test_a_heartbeat_must_come_before_the_first_motion_and_go_on() -> None:
    stop = EStop(rearm=True, timeout_s=0.5)
    assert "every 0.5 s" in stop.problem(1e6, 0)
    stop.heard(False, 10.0)
    assert stop.problem(10.5, 1) == ""
    assert "every 0.5 s" in stop.problem(10.6, 1)
    stop.heard(False, 11.0)
    assert "call the service rearm" in stop.problem(11.0, 1)
    assert stop.arm()
    assert stop.problem(11.1, 1) == ""


def test_a_gap_between_two_messages_counts_though_nobody_asked_meanwhile() -> None:
    stop = EStop(rearm=True, timeout_s=0.5)
    stop.heard(False, 10.0)
    stop.heard(False, 11.0)
    assert "call the service rearm" in stop.problem(11.0, 1)


def test_without_rearming_a_heartbeat_that_comes_back_is_enough() -> None:
    stop = EStop(rearm=False, timeout_s=0.5)
    stop.heard(False, 10.0)
    assert stop.problem(11.0, 1)
    stop.heard(False, 11.1)
    assert stop.problem(11.2, 1) == ""
