"""Stamps and the clock of ROS against wall time, and what the contract says about plausible inputs."""

from __future__ import annotations

from unittest.mock import MagicMock

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped

from ttm.policy.errors import MalformedObservation, StaleObservation
from ttm_policy import control_loop
from ttm_policy.contract import Field, ImageSource, VectorSource
from ttm_policy.guards import (
    Arrivals,
    ClockSteps,
    require_contrast,
    require_frame_id,
    require_plausible,
)


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


def _source(*fields: Field, frame_id: str = "") -> VectorSource:
    return VectorSource("pose", "ee_pose", "geometry_msgs/PoseStamped", fields, frame_id)


def _image(min_contrast: float) -> ImageSource:
    return ImageSource("head", "image", "sensor_msgs/Image", min_contrast=min_contrast)


def test_bounds_hold_in_the_unit_of_the_message() -> None:
    source = _source(Field("x", scale=-20.0, minimum=-0.1, maximum=0.3), Field("y"))
    for inside in (-0.1, 0.0, 0.3):
        require_plausible(np.array([inside * -20.0, 1e30], np.float32), source)
    for outside in (-0.101, 0.301, np.inf, -np.inf):
        with pytest.raises(MalformedObservation, match=r"accepts -0\.1 to 0\.3"):
            require_plausible(np.array([outside * -20.0, 0.0], np.float32), source)


def test_an_implausible_value_is_told_in_the_unit_of_the_message() -> None:
    source = _source(Field("elbow", scale=20.0, minimum=-4, maximum=4))
    with pytest.raises(MalformedObservation, match=r"'elbow' of 'pose' \(ee_pose\) is 1e\+06; the"):
        require_plausible(np.array([2e7], np.float32), source)


def test_a_frame_of_nearly_one_colour_is_refused_where_the_contract_asks_for_contrast() -> None:
    black, white = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)
    half = np.concatenate([black, white])
    for frame in (black, white):
        require_contrast(frame, _image(0.0))
        with pytest.raises(
            MalformedObservation, match=r"contrast of 0\.0; the contract asks for 2"
        ):
            require_contrast(frame, _image(2.0))
    require_contrast(half, _image(127.0))


def test_the_frame_id_is_checked_only_if_the_contract_names_one() -> None:
    message = PoseStamped()
    message.header.frame_id = "world"
    require_frame_id(message, _source())
    require_frame_id(message, _source(frame_id="world"))
    with pytest.raises(MalformedObservation, match="in frame 'world'; the contract accepts 'base'"):
        require_frame_id(message, _source(frame_id="base"))
