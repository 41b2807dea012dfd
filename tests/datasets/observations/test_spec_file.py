"""The YAML file by which a user says what the episodes of others hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset, open_dataset
from ttm.datasets.description import Choices, read_spec_file
from ttm.datasets.tools.show import DataShowCommand
from ttm.policy import UserError

TICKS = 5


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """One demo without a spec, with two cameras, two vectors and four action dimensions."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "theirs.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = rng.normal(size=(TICKS, 4))
        for name in ("front", "side"):
            demo[f"obs/{name}"] = rng.integers(0, 256, (TICKS, 6, 8, 3), dtype=np.uint8)
        demo["obs/pose"], demo["obs/joints"] = rng.normal(size=(2, TICKS, 2))
    return tmp_path / "theirs.hdf5"


def opened(path: Path, text: str) -> Any:
    spec = path.with_suffix(".yaml")
    spec.write_text(text)
    return open_dataset(path, choices=Choices(spec=spec))


def test_what_show_writes_reads_the_same(theirs: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    for _ in range(2):  # the second time it is read
        assert DataShowCommand(str(theirs), choices=Choices(spec=spec)).run() == 0
    assert open_dataset(theirs, choices=Choices(spec=spec)).spec == open_dataset(theirs).spec


def test_everything_can_be_said(theirs: Path) -> None:
    episodes = opened(
        theirs,
        """
robot: franka
rate_hz: 12.5
cameras:
  side: {orientation: rotated, colours: bgr}
proprioception:
  joints: [elbow (rad), wrist (rad)]
actions:
  - {name: arm, size: 3, unit: m, low: -3, high: 3}
  - {name: gripper, size: 1, kind: binary, low: 0, high: 0.08}
""",
    )
    spec = episodes.spec
    assert (spec.robot, spec.rate_hz) == ("franka", 12.5)
    assert [camera.name for camera in spec.cameras] == ["side"]
    assert spec.proprioception[0].labels == ("elbow (rad)", "wrist (rad)")
    assert [part.limits for part in spec.actions] == [(-3, 3), (0, 0.08)]
    stored = open_dataset(theirs)[0].frames("side")
    assert (episodes[0].frames("side") == stored[:, ::-1, ::-1, ::-1]).all()
    reasons = {member.name: member.reason for member in episodes.members}
    assert reasons == {"side": "", "joints": "", "front": "not chosen", "pose": "not chosen"}


def test_the_spec_of_our_own_files_can_be_changed(record, tmp_path: Path) -> None:
    episodes = opened(record(tmp_path / "a.hdf5"), "rate_hz: 10\ncameras: {wrist: {}}")
    assert episodes.spec.rate_hz == 10
    assert [camera.name for camera in episodes.spec.cameras] == ["wrist"]
    assert "changed by" in episodes.note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate: 5", "unknown rate; it may have: "),
        ("- 1", "unknown"),
        ("{", "no spec can be read from it"),
        ("rate_hz: fast", "rate_hz is fast"),
        ("rate_hz: -1", "rate_hz is -1"),
        ("cameras: {back: {}}", "camera 'back' is not in this data; it has: front, side"),
        ("rate_hz: 2026-99-99", "no spec can be read from it"),
        ("cameras: {pose: {}}", "obs/pose cannot be camera"),
        ("cameras: {front: {orientation: left}}", "take one of upright, upside-down, rotated"),
        ("cameras: {front: {color: rgb}}", "unexpected keyword argument 'color'"),
        ("cameras: {front: {values: [1, 0]}}", "give black, then white"),
        ("cameras: [front]", "an entry has another form than expected"),
        ("proprioception: {pose: [x]}", "proprioception pose has 1 labels for 2 values"),
        ("proprioception: {torque: []}", "proprioception 'torque' is not in this data"),
        ("actions: [{name: arm, size: 3}]", "have 3 dimensions, but the data 4"),
        ("proprioception: {pose: xy}", "give a list of labels"),
        ("actions: [{name: arm, size: 0}]", "size is 0"),
        ("actions: [{name: arm, size: true}]", "size is True"),
        ("actions: [{name: a, size: 2}, {name: a, size: 2}]", "repeat"),
        ("actions: [{name: a, size: 4, low: 1, high: 0}]", "give its limits"),
        ("actions: [{name: a, size: 4, kind: binary, low: -1}]", "give its two commands"),
        ("actions: [{size: 4}]", "an entry has another form"),
        ("actions: [{name: a, size: 4, kind: both}]", "one of continuous, binary"),
        ("actions: [{name: a, size: 4, limits: 1}]", "unexpected keyword argument 'limits'"),
        ("actions: [{name: a, size: 4, kind: binary, low: 1, high: 1}]", "its two commands"),
    ],
)
def test_mistakes_are_told_in_one_line(theirs: Path, text: str, message: str) -> None:
    with pytest.raises(
        UserError, match=r"theirs\.yaml|not in this data|cannot be|repeat"
    ) as refused:
        opened(theirs, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_an_empty_file_leaves_out_is_inferred(theirs: Path) -> None:
    assert opened(theirs, "# nothing yet\n").spec == open_dataset(theirs).spec


def test_check_takes_its_limits(theirs: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("actions: [{name: arm, size: 4, unit: m, low: -0.001, high: 0.001}]")
    faults = check_dataset(theirs, Choices(spec=spec)).faults
    assert any("outside -0.001 to 0.001 m" in fault.what for fault in faults)
    assert not any("outside" in fault.what for fault in check_dataset(theirs).faults)


def test_check_names_values_beyond_two_commands_but_none_between(theirs: Path) -> None:
    with h5py.File(theirs, "a") as file:
        file["data/demo_0/actions"][:, 3] = [-1, -1, 0.3, 1, 1]
    spec = theirs.with_suffix(".yaml")
    start = "actions: [{name: arm, size: 3}, {name: gripper, size: 1, kind: binary"
    spec.write_text(f"{start}, low: -1, high: 1}}]")
    assert check_dataset(theirs, Choices(spec=spec)).num_errors == 0
    spec.write_text(f"{start}}}]")  # 0 and 1
    faults = check_dataset(theirs, Choices(spec=spec)).faults
    assert any("action 'gripper' reaches -1" in fault.what for fault in faults)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write one with `ttm data show DATA --spec no\.yaml`"):
        read_spec_file(tmp_path / "no.yaml")
