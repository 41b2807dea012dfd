"""What the contract says about plausible inputs."""

from __future__ import annotations

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped

from ttm.policy.errors import MalformedObservation
from ttm_policy.contract import Field, ImageSource, VectorSource
from ttm_policy.guards import require_contrast, require_frame_id, require_plausible


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
