"""`ttm bench record`: made-up figures, and one short run. No test depends on time."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ttm.policy.errors import UserError
from ttm.training.bench.processes import processor_s, used_between
from ttm.training.bench.record import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    BenchRecordCommand,
    CameraFigures,
    RecordRun,
    Run,
    cost,
    frames_per_core_second,
)
from ttm_policy.sensors import camera_load as numbered_frames


def test_what_never_arrived_is_not_lost_by_the_recorder() -> None:
    assert CameraFigures("head", sent=100, gaps=3, in_file=97).lost == 0
    assert CameraFigures("head", sent=100, gaps=3, in_file=95).lost == 2
    assert CameraFigures("head", sent=100, gaps=3, in_file=99).never_arrived == 1


def test_the_cost_is_that_of_a_recorded_second() -> None:
    cameras = [CameraFigures(name, 300, 0, 300) for name in ("head", "wrist")]
    run = RecordRun(cameras, "", processor_s=4.0, streamed_s=20.0)
    assert frames_per_core_second(run) == 150
    text = cost(run, 10.0)
    assert "0.40 s of processor time for each recorded second" in text
    assert "2.5 times as much, 150 frames a second" in text


def test_processor_time_is_interpolated_and_unknown_for_a_process_that_is_gone() -> None:
    assert used_between([(0.0, 1.0), (10.0, 6.0)], 2.0, 4.0) == pytest.approx(1.0)
    assert processor_s(2**30) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0.0}, "seconds"),
        ({"cameras": 0}, "cameras"),
        ({"width": 100}, "width"),
        ({"jpeg_quality": 96}, "jpeg-quality"),
        ({"kills": -1}, "kills"),
        ({"fill": True}, "--fill needs --out"),
        ({"fill": True, "out": Path("full"), "kills": 1}, "no --kills"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BenchRecordCommand(**options).run()


def test_the_least_frames_are_those_of_the_made_up_cameras() -> None:
    least = (numbered_frames.LEAST_WIDTH, numbered_frames.LEAST_HEIGHT)
    assert least == (LEAST_WIDTH, LEAST_HEIGHT)


@pytest.mark.skipif(find_spec("rclpy") is None, reason="ROS 2 is not here")
def test_every_frame_that_arrives_is_in_the_file(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    command = BenchRecordCommand(
        seconds=1.0, rate_hz=10.0, cameras=1, width=320, height=16, json=out
    )
    assert command.run() == 0
    figures = json.loads(out.read_text())
    (camera,) = figures["cameras"]
    assert camera["in_file"] >= 10
    assert (camera["sent"], camera["lost"]) == (camera["in_file"], 0)
    assert figures["processor_s"] > 0


def test_what_was_told_and_is_gone_is_lost(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path / "journal", None, None, {})  # type: ignore[arg-type]
    assert run.told("saved") == []
    lines = [{"saved": f"{tmp_path}/{name}.hdf5"} for name in "ab"]
    lines.insert(1, {"problem": "No space left on device"})
    (tmp_path / "journal").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"sav')
    (tmp_path / "b.hdf5").touch()
    assert (run.told("problem"), run.lost) == (["No space left on device"], {"a.hdf5"})


@pytest.mark.skipif(find_spec("rclpy") is None, reason="ROS 2 is not here")
def test_a_kill_costs_no_more_than_the_episode_in_hand(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = BenchRecordCommand(
        kills=1, seconds=0.5, rate_hz=10.0, cameras=1, width=320, height=16, json=out
    )
    assert command.run() == 0
    figures = json.loads(out.read_text())
    assert figures["whole"] >= 1
    assert figures["partial"] == figures["most_at_once"] <= 1
    assert (figures["damaged"], figures["lost"]) == (0, 0)
