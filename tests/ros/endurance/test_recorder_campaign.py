"""The campaign of the recorder: numbered frames, made-up figures, and short runs. No test depends on time."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from recorder_campaign import (
    BLOCK,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    CameraFigures,
    Recorded,
    RecorderCampaign,
    RecorderRun,
    numbers_in,
    picture,
    processor_s,
    read_numbers,
    write_number,
)

from ttm.policy import UserError

SCRIPT = Path(__file__).with_name("run.py")


def _as_jpeg(frame: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def test_numbers_are_read_back_from_jpegs_of_low_quality() -> None:
    frames = []
    for number in (0, 1, 2**20 - 1, 123_456):
        frame = picture(48, LEAST_WIDTH, seed=number % 7)
        write_number(frame, number)
        frames.append(_as_jpeg(frame, quality=20))
    assert read_numbers(np.array(frames)).tolist() == [0, 1, 2**20 - 1, 123_456]


class Episode:
    """As long as three blocks and a frame, of which the last one is there twice."""

    num_samples = 3 * BLOCK + 1

    def __init__(self) -> None:
        self._given: list[weakref.ref[Any]] = []
        self.most_alive = 0

    def frames(self, camera: str, start: int, stop: int) -> np.ndarray:
        self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self._given) + 1)
        block = np.stack([picture(LEAST_HEIGHT, LEAST_WIDTH, 0)] * (stop - start))
        for frame, number in zip(block, range(start, stop), strict=True):
            write_number(frame, min(number, 3 * BLOCK - 1))
        self._given.append(weakref.ref(block))
        return block


def test_the_frames_of_a_long_episode_are_never_in_memory_at_once() -> None:
    episode: Any = Episode()
    assert numbers_in(episode, "head").tolist() == list(range(3 * BLOCK))
    assert episode.most_alive <= 2


def test_what_never_arrived_is_not_lost_by_the_recorder() -> None:
    assert CameraFigures("head", sent=100, gaps=3, in_file=97).lost == 0
    assert CameraFigures("head", sent=100, gaps=3, in_file=95).lost == 2
    assert CameraFigures("head", sent=100, gaps=3, in_file=99).never_arrived == 1


def test_the_cost_is_that_of_a_recorded_second() -> None:
    cameras = [CameraFigures(name, 300, 0, 300) for name in ("head", "wrist")]
    run = Recorded(cameras, "", processor_s=4.0, streamed_s=20.0)
    assert run.frames_per_core_second == 150
    text = run.cost(10.0)
    assert "0.40 s of processor time for each recorded second" in text
    assert "2.5 times as much, 150 frames a second" in text


def test_processor_time_is_that_of_a_process() -> None:
    before = processor_s(os.getpid())
    sum(range(10**7))
    assert processor_s(os.getpid()) > before


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
        RecorderCampaign(**options).check()


def _run(tmp_path: Path, *words: str) -> Any:
    """Run the campaign with one small camera at 10 Hz, and return its figures."""
    out = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "record", "--cameras", "1", "--width", "320"]
    command += ["--height", "16", "--rate-hz", "10", "--json", str(out), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(out.read_text())


def test_every_frame_that_arrives_is_in_the_file(tmp_path: Path) -> None:
    figures = _run(tmp_path, "--seconds", "1")
    (camera,) = figures["cameras"]
    assert camera["in_file"] >= 10
    assert (camera["sent"], camera["lost"]) == (camera["in_file"], 0)
    assert figures["processor_s"] > 0


def test_a_kill_costs_no_more_than_the_episode_in_hand(tmp_path: Path) -> None:
    figures = _run(tmp_path, "--kills", "1", "--seconds", "0.5")
    assert figures["whole"] >= 1
    assert figures["partial"] == figures["most_at_once"] <= 1
    assert (figures["damaged"], figures["lost"]) == (0, 0)


def test_what_was_told_and_is_gone_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = [f"{tmp_path}/{name}.hdf5" for name in "ab"]
    load: Any = SimpleNamespace(told={"saved": saved}, processes=[])
    (tmp_path / "b.hdf5").touch()
    assert RecorderRun(tmp_path, tmp_path, load, {}).figures()["lost"] == 1
