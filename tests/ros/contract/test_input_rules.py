"""What a contract says about when an input may be trusted, and the mistakes in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ttm.policy import UserError
from ttm_policy.contract import RobotContract, default_contract, load_contract

Data = dict[str, Any]


def _load(change: Callable[[Data], None], folder: Path) -> RobotContract:
    data = yaml.safe_load(default_contract().read_text())
    change(data)
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_contract(path)


def _head(**keys: Any) -> Callable[[Data], None]:
    return lambda data: data["observations"]["head"].update(keys)


def _pose(**keys: Any) -> Callable[[Data], None]:
    return lambda data: data["observations"]["ee_pose"].update(keys)


def _field(**keys: Any) -> Callable[[Data], None]:
    return lambda data: data["observations"]["base_velocity"]["fields"].__setitem__(
        0, {"field": "twist.twist.linear.x", **keys}
    )


def test_all_keys_are_read(tmp_path: Path) -> None:
    def change(data: Data) -> None:
        data["max_skew_s"] = 1
        _head(repeat=True, min_contrast=3, frame_id="head_camera", publishers=2)(data)
        _pose(frame_id="base_link")(data)
        _field(min=-2, max=2.5)(data)

    contract = _load(change, tmp_path)
    head = contract.images[0]
    assert (head.repeat, head.min_contrast, head.frame_id, head.publishers) == (
        True,
        3.0,
        "head_camera",
        2,
    )
    vectors = {source.name: source for source in contract.vectors}
    assert (vectors["ee_pose"].frame_id, vectors["ee_pose"].publishers) == ("base_link", 1)
    forward, yaw = vectors["base_velocity"].fields
    assert (forward.minimum, forward.maximum) == (-2.0, 2.5)
    assert yaw.path == "twist.twist.angular.z"
    assert contract.max_skew_s == 1.0


def test_without_them_everything_is_accepted(tmp_path: Path) -> None:
    def change(data: Data) -> None:
        for entry in data["observations"].values():
            for key in ("frame_id", "publishers", "repeat", "min_contrast"):
                entry.pop(key, None)
        _field()(data)
        data.pop("max_skew_s", None)

    contract = _load(change, tmp_path)
    assert not any(image.repeat or image.min_contrast for image in contract.images)
    assert all(source.publishers == 1 and not source.frame_id for source in contract.inputs)
    field = {source.name: source for source in contract.vectors}["base_velocity"].fields[0]
    assert (field.minimum, field.maximum) == (-math.inf, math.inf)
    assert contract.max_skew_s == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_head(repeat="no"), "observation 'head' has repeat 'no'; give true or false"),
        (_head(resize=1), "observation 'head' has resize 1; give true or false"),
        (_head(min_contrast=-1), "min_contrast -1; give a standard deviation"),
        (_head(min_contrast=200), "min_contrast 200; give a standard deviation"),
        (_head(min_contrast=math.nan), "has min_contrast nan; give a number"),
        (_head(min_contrast="dark"), "has min_contrast 'dark'; give a number"),
        (_head(frame_id=3), "has frame_id 3; give the header's frame as text"),
        (_pose(frame_id=None), "has frame_id None; give the header's frame as text"),
        (_pose(publishers=0), "has publishers 0; give the number of nodes"),
        (_pose(publishers=True), "has publishers True; give the number of nodes"),
        (_pose(publishers=1.5), "has publishers 1.5; give the number of nodes"),
        (_pose(repeat=True), "observation 'ee_pose' has unknown repeat"),
        (_field(min=1, max=1), "has min 1 and max 1; give a min below the max"),
        (_field(min=2, max=-2), "has min 2 and max -2; give a min below the max"),
        (_field(min=math.nan), "field 'twist.twist.linear.x', has min nan; give a number"),
        (_field(max="fast"), "field 'twist.twist.linear.x', has max 'fast'; give a number"),
        (_field(maximum=3), "has unknown maximum; it takes field, max, min, scale"),
        (lambda data: data.update(max_skew_s=0), "has max_skew_s 0; give seconds above 0"),
        (lambda data: data.update(max_skew_s=math.nan), "has max_skew_s nan; give a number"),
        (lambda data: data.update(max_skew_s="1 s"), "has max_skew_s '1 s'; give a number"),
    ],
)
def test_every_mistake_is_told_in_one_line(
    change: Callable[[Data], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        _load(change, tmp_path)
    assert message in str(raised.value)
    assert "robot.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)
