"""When the emergency stop lets the robot move."""

from __future__ import annotations

import pytest

from ttm_policy.guards import FIRST_STATE_S, MOST_PUBLISHERS, EStop

BUTTON, OTHER = b"button", b"other"


def test_without_a_button_the_robot_may_move() -> None:
    assert EStop(rearm=True, timeout_s=0.0).problem(0.0, publishers=0) == ""


def test_a_release_waits_to_be_armed() -> None:
    stop = EStop(rearm=True, timeout_s=0.0)
    stop.heard(True, 1.0)
    assert stop.problem(1.0, 1) == "it is pressed"
    assert not stop.arm([BUTTON])
    stop.heard(False, 2.0)
    assert "call the service rearm" in stop.problem(2.0, 1)
    assert "call the service rearm" in stop.problem(1e6, 0)
    assert stop.arm([BUTTON])
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
    assert stop.arm([BUTTON])
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


def test_a_pressed_button_stops_whatever_other_publishers_say() -> None:
    stop = EStop(rearm=False, timeout_s=0.0)
    stop.heard(True, 1.0, BUTTON)
    for i in range(300):
        stop.heard(False, 1.0 + i / 100, i.to_bytes(2, "big") if i % 2 else OTHER, sent_ns=i)
        assert stop.problem(1.0 + i / 100, 2) == "it is pressed"
    assert not stop.arm([BUTTON, OTHER])
    stop.heard(False, 5.0, BUTTON)
    assert stop.problem(5.0, 2) == ""


def test_a_publisher_that_has_gone_while_pressed_is_forgotten_by_arming_alone() -> None:
    stop = EStop(rearm=False, timeout_s=0.0)
    stop.heard(True, 1.0, BUTTON)
    stop.heard(False, 2.0, OTHER)
    assert stop.problem(1e6, 1) == "it is pressed"
    assert stop.arm([OTHER])
    assert stop.problem(1e6, 1) == ""


def test_of_many_publishers_none_undoes_a_press() -> None:
    stop = EStop(rearm=False, timeout_s=0.0)
    for i in range(1000):
        stop.heard(i == 500, 1.0, i.to_bytes(2, "big"), alone=False)
    assert stop.pressed
    assert len(stop._buttons) <= MOST_PUBLISHERS + 1
    assert stop.arm([BUTTON])


def test_where_publishers_are_not_told_apart_arming_alone_ends_a_press_among_several() -> None:
    stop = EStop(rearm=False, timeout_s=0.0)
    stop.heard(True, 1.0)
    assert not stop.arm([BUTTON, OTHER])
    stop.heard(False, 2.0, alone=False)
    assert stop.problem(2.0, 2) == "it is pressed"
    assert stop.arm([BUTTON, OTHER])
    assert stop.problem(2.0, 2) == ""


def test_another_publisher_does_not_hide_a_button_that_has_fallen_silent() -> None:
    stop = EStop(rearm=False, timeout_s=0.5)
    for i in range(11):
        stop.heard(False, i / 10, BUTTON, sent_ns=i)
    for i in range(10, 16):
        stop.heard(False, i / 10, OTHER, sent_ns=i)
    assert stop.problem(1.5, 2) == ""
    stop.heard(False, 1.6, OTHER, sent_ns=16)
    assert "every 0.5 s" in stop.problem(1.6, 1)
    assert "call the service rearm" in stop.problem(1.6, 1)
    assert "call the service rearm" not in stop.problem(5.0, 1)
    assert stop.arm([OTHER])
    assert stop.problem(1.6, 1) == ""


def test_a_message_that_is_not_repeated_need_not_go_on_beside_a_heartbeat() -> None:
    """The page's Stop says once that it is released, and has gone then."""
    stop = EStop(rearm=False, timeout_s=0.5)
    stop.heard(True, 1.0, OTHER, sent_ns=1)
    for copy_s in (1.1, 1.11, 1.12):
        stop.heard(False, copy_s, OTHER, sent_ns=2)
    for i in range(10, 30):
        stop.heard(False, i / 10, BUTTON, sent_ns=i)
    assert stop.problem(2.9, 1) == ""


@pytest.mark.parametrize("rearm", [True, False])
def test_what_is_disarmed_from_the_start_waits_for_a_person(rearm: bool) -> None:
    """Neither a button that says that it is released lets it go on, nor a press in between."""
    stop = EStop(rearm=rearm, timeout_s=0.0, disarmed="the policy has crashed")
    stop.heard(False, 1.0, b"button")
    assert stop.problem(1.0, publishers=1) == "the policy has crashed"
    stop.heard(True, 2.0, b"button")
    assert stop.problem(2.0, publishers=1) == "it is pressed"
    stop.heard(False, 3.0, b"button")
    assert stop.problem(3.0, publishers=1) == "the policy has crashed"
    assert stop.arm([b"button"])
    assert stop.problem(3.0, publishers=1) == ""
