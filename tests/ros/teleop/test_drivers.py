"""One person drives at a time, and nobody drives who is silent."""

from __future__ import annotations

import numpy as np

from ttm_policy.teleop.session import Drivers
from ttm_policy.teleop.source import Wish


class Hand:
    """A source that does what the test says."""

    timeout_s, problem, unheard = 0.3, "", ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted: Wish | None = None
        self.asked = False

    def touch(self, value: float, stamp_s: float) -> None:
        self.wanted = Wish(np.array([value], np.float32), stamp_s)

    def wish(self, now_s: float) -> Wish | None:
        return self.wanted

    def gives_back(self) -> bool:
        asked, self.asked = self.asked, False
        return asked

    def close(self) -> None: ...


def test_the_first_one_drives_until_he_lets_go() -> None:
    left, right = Hand("left"), Hand("right")
    drivers = Drivers([left, right])
    assert drivers.wish(0.0) is None
    right.touch(2.0, 0.0)
    assert drivers.wish(0.0) == 2.0
    left.touch(1.0, 0.1)
    assert drivers.wish(0.1) == 2.0
    assert drivers.problem == "left is refused while right drives; let go of one of them"
    right.wanted = None
    assert drivers.wish(0.2) is None  # the robot stops before somebody else drives it
    assert drivers.wish(0.2) == 1.0
    assert (drivers.driver, drivers.problem) == ("left", "")


def test_of_two_who_begin_together_both_are_refused() -> None:
    left, right = Hand("left"), Hand("right")
    drivers = Drivers([left, right])
    left.touch(1.0, 0.0)
    right.touch(2.0, 0.0)
    assert drivers.wish(0.0) is None
    assert drivers.problem == "left and right want to drive at once; let go of one of them"


def test_silence_stops_within_the_time_out_and_is_told() -> None:
    hand = Hand("hand")
    drivers = Drivers([hand])
    hand.touch(1.0, 0.0)
    assert drivers.wish(0.3) == 1.0
    assert drivers.wish(0.31) is None
    assert drivers.problem.startswith("hand has been silent for more than 0.3 s")
    hand.touch(1.0, 0.4)
    assert drivers.wish(0.4) == 1.0


def test_giving_back_is_asked_of_all() -> None:
    left, right = Hand("left"), Hand("right")
    drivers = Drivers([left, right])
    left.asked = right.asked = True
    assert (drivers.give_back(), drivers.give_back()) == (True, False)
