"""One person drives at a time, and nobody drives who is silent."""

from __future__ import annotations

from teleoperation import FakeSource

from ttm_policy.teleop.session import Arbiter


def test_the_first_one_drives_until_they_let_go() -> None:
    left, right = FakeSource("left"), FakeSource("right")
    arbiter = Arbiter([left, right])
    assert arbiter.wish(0.0) is None
    right.touch(2.0, 0.0)
    assert arbiter.wish(0.0) == 2.0
    left.touch(1.0, 0.1)
    assert arbiter.wish(0.1) == 2.0
    assert arbiter.problem == "left is refused while right drives; let go of one of them"
    right.wanted = None
    assert arbiter.wish(0.2) is None  # the robot stops before somebody else drives it
    assert arbiter.wish(0.2) == 1.0
    assert (arbiter.driver, arbiter.problem) == ("left", "")


def test_of_two_who_begin_together_both_are_refused() -> None:
    left, right = FakeSource("left"), FakeSource("right")
    arbiter = Arbiter([left, right])
    left.touch(1.0, 0.0)
    right.touch(2.0, 0.0)
    assert arbiter.wish(0.0) is None
    assert arbiter.problem == "left and right want to drive at once; let go of one of them"


def test_silence_stops_within_the_time_out_and_is_told() -> None:
    hand = FakeSource("hand")
    arbiter = Arbiter([hand])
    hand.touch(1.0, 0.0)
    assert arbiter.wish(0.3) == 1.0
    assert arbiter.wish(0.31) is None
    assert arbiter.problem.startswith("hand has been silent for more than 0.3 s")
    hand.touch(1.0, 0.4)
    assert arbiter.wish(0.4) == 1.0


def test_giving_back_is_asked_of_all() -> None:
    left, right = FakeSource("left"), FakeSource("right")
    arbiter = Arbiter([left, right])
    left.ask_to_give_back()
    right.ask_to_give_back()
    assert (arbiter.give_back(), arbiter.give_back()) == (True, False)
