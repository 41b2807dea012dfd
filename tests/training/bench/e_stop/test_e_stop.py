"""`ttm bench e-stop`: the verdict on made-up presses, and what counts as an answer to one."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from ttm.policy.errors import UserError
from ttm.training.bench.e_stop import BenchEStopCommand, lines

GOOD: dict[str, Any] = {
    "driving_s": [0.003, 0.050],
    "asked_s": [0.004] * 19 + [0.013],
    "loading_s": [0.004] * 19 + [0.012],
    "prepared_s": 6.0,
    "silence_s": 1.1,
}


def _missed(**change: Any) -> list[str]:
    return [line.what for line in lines(GOOD | change) if line.holds is False]


def test_the_slowest_answer_while_asked_or_loading_and_the_longest_silence_have_bars() -> None:
    assert _missed() == []
    assert _missed(loading_s=[0.004] * 99 + [0.021]) == ["worst, ms"]
    assert _missed(asked_s=[0.004] * 99 + [0.021]) == ["worst, ms"]
    assert _missed(silence_s=4.5) == ["longest silence, s"]


@pytest.mark.skipif(find_spec("rclpy") is None, reason="ROS 2 is not here")
def test_only_what_was_sent_after_the_press_answers_it_and_the_first_of_each_topic_counts() -> None:
    from ttm_policy.faults.presses import PressedRobot

    zeros = [("base", 9.0, 10.5), ("base", 10.1, 10.2), ("arm", 10.3, 10.4), ("base", 10.6, 10.7)]
    robot: Any = SimpleNamespace(_zeros=zeros)
    assert PressedRobot._answers(robot, 10.0) == {"base": 10.2, "arm": 10.4}


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="presses"):
        BenchEStopCommand(presses=0).run()
    with pytest.raises(UserError, match="seed"):
        BenchEStopCommand(seed=-1).run()
