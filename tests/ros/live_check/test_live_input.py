"""What is said about an input from the messages that came, with times that the test sets."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState

from ttm.policy import CameraSpec
from ttm_policy.contract import Field, ImageSource, VectorSource
from ttm_policy.live_check import Finding, LiveInput, report
from ttm_policy.messages import ns_to_stamp

ODOM = VectorSource("speed", "odom", "nav_msgs/Odometry", (Field("twist.twist.linear.x"),))
JOINTS = VectorSource("joints", "joints", "sensor_msgs/JointState", (Field("a"), Field("b")))
HEAD = ImageSource("head", "head", "sensor_msgs/Image")


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    node = Node("live_input_test")
    yield node
    node.destroy_node()
    rclpy.shutdown()


def _problems(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    source: Any,
    messages: Sequence[tuple[float, Any]],
    **options: Any,
) -> list[str]:
    """messages: (arrival in s, message). The end of listening is at 2 s."""
    expected = {"max_age_s": 0.5, "rate_hz": 0.0, "camera": None} | options
    live = LiveInput(node, source, **expected)
    for arrival_s, message in messages:
        monkeypatch.setattr(time, "monotonic", lambda s=arrival_s: s)
        live._add(message)
    monkeypatch.undo()
    finding = live.finding(2.0)
    # The test itself publishes nothing, so that a missing publisher is always the first problem.
    assert "nobody publishes it" in finding.problems[0]
    return list(finding.problems[1:])


def _stamped(node: Node, message: Any, age_s: float = 0.0) -> Any:
    now_ns = node.get_clock().now().nanoseconds
    message.header.stamp = ns_to_stamp(now_ns - round(age_s * 1e9))
    return message


def _odometry(node: Node, speed: float = 0.0, age_s: float = 0.0) -> Odometry:
    message = Odometry()
    message.twist.twist.linear.x = speed
    return _stamped(node, message, age_s)


def _black(node: Node) -> Image:
    return _stamped(node, Image(height=4, width=6, encoding="rgb8", step=18, data=bytes(72)))


TIMES = [i / 10 for i in range(21)]


def test_a_steady_input_has_no_problem(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [(t, _odometry(node)) for t in TIMES]
    assert _problems(node, monkeypatch, ODOM, messages, rate_hz=10.0) == []


@pytest.mark.parametrize(
    ("times", "age_s", "rate_hz", "words"),
    [
        (TIMES[:10], 0.0, 0.0, "silent for 1.10 s, and the policy holds after 0.5 s"),
        (TIMES, 0.0, 20.0, "slower than the 20 Hz of the policy"),
        (TIMES, 3.0, 0.0, "s old, and the policy accepts 0.5 s; synchronise"),
        (TIMES, -3.0, 0.0, "s ahead of the clock"),
    ],
)
def test_times_and_stamps_are_judged(
    node: Node, monkeypatch: pytest.MonkeyPatch, times: Any, age_s: Any, rate_hz: Any, words: str
) -> None:
    messages = [(t, _odometry(node, age_s=age_s)) for t in times]
    problems = _problems(node, monkeypatch, ODOM, messages, rate_hz=rate_hz)
    assert len(problems) == 1
    assert words in problems[0]


def test_stamps_that_say_nothing_are_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = _problems(node, monkeypatch, ODOM, [(t, Odometry()) for t in TIMES])
    assert problems == ["its stamps are 0; let the driver set header.stamp to the time of capture"]
    frozen = _odometry(node)
    problems = _problems(node, monkeypatch, ODOM, [(t, frozen) for t in TIMES])
    assert "its stamp never changes" in problems[0]


def test_ages_begin_with_the_first_clock_of_a_simulator(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [(t, _odometry(node)) for t in TIMES]
    simulated = Node("simulated", parameter_overrides=[Parameter("use_sim_time", value=True)])
    assert "nobody publishes /clock" in _problems(simulated, monkeypatch, ODOM, messages)[0]
    simulated.destroy_node()
    assert _problems(node, monkeypatch, ODOM, messages) == []


def test_the_slowest_joint_says_how_often_an_input_comes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joint(name: str) -> JointState:
        return _stamped(node, JointState(name=[name], position=[0.0]))

    messages = [(0.0, joint("b"))] + [(t, joint("a")) for t in TIMES]
    assert "silent for" in _problems(node, monkeypatch, JOINTS, messages)[0]
    both = [(t, joint(name)) for t in TIMES for name in ("other", "a", "b")]
    assert _problems(node, monkeypatch, JOINTS, both) == []
    alone = [(t, joint("other")) for t in TIMES]
    assert (
        "joint 'a' is not in joints, which has: other"
        in _problems(node, monkeypatch, JOINTS, alone)[0]
    )


@pytest.mark.parametrize("speed", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_told(
    node: Node, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    messages = [(t, _odometry(node, speed)) for t in TIMES]
    assert f"'twist.twist.linear.x' is {speed}" in _problems(node, monkeypatch, ODOM, messages)[0]


def test_frames_must_have_the_policys_size_unless_they_are_resized(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [(t, _black(node)) for t in TIMES]
    assert _problems(node, monkeypatch, HEAD, messages) == []
    problems = _problems(node, monkeypatch, HEAD, messages, camera=CameraSpec("head", 8, 8))
    assert "gives 6x4 frames" in problems[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"repeat": True}, ""),
        ({}, "slower than the 20 Hz of the policy"),
        ({"repeat": True, "min_contrast": 2.0}, "has a contrast of 0.0; the contract asks for 2"),
        ({"repeat": True, "frame_id": "camera"}, "is in frame ''; the contract accepts 'camera'"),
    ],
)
def test_the_contracts_keys_of_a_camera_are_heeded(
    node: Node, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str
) -> None:
    messages = [(t, _black(node)) for t in TIMES]
    problems = _problems(node, monkeypatch, replace(HEAD, **keys), messages, rate_hz=20.0)
    assert len(problems) == bool(words)
    assert all(words in problem for problem in problems)


def test_values_outside_of_the_contracts_bounds_are_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(ODOM, fields=(Field("twist.twist.linear.x", minimum=-1.0, maximum=1.0),))
    messages = [(t, _odometry(node, 3.0)) for t in TIMES]
    (problem,) = _problems(node, monkeypatch, slow, messages)
    assert "is 3; the contract accepts -1 to 1" in problem


def test_the_report_counts_what_is_wrong() -> None:
    fits, wrong = Finding("odom", "10 Hz"), Finding("cmd_vel", "", ("nobody listens to it",))
    assert report([fits, wrong], "r.yaml").splitlines() == [
        "ok     odom     10 Hz",
        "WRONG  cmd_vel",
        "       nobody listens to it",
        "1 of 2 topics do not fit r.yaml; mend robot or contract",
    ]
    assert report([fits], "r.yaml").endswith("all 1 topics fit r.yaml")
