"""The film of an episode: every tick, what changes in it, and files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import h5py
import imageio
import numpy as np
import pytest
from PIL import Image

from ttm.datasets import EpisodeReader, EpisodeWriter
from ttm.datasets.tools import play as ticks
from ttm.datasets.tools.play import (
    DPI,
    FILMS,
    HEADER,
    WIDTH,
    DataPlayCommand,
    capture_times_s,
    film_frames,
)
from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec, UserError
from ttm.training.cli import main


def test_every_tick_has_a_picture_with_what_its_cameras_saw(tmp_path, record, monkeypatch):
    monkeypatch.setattr(ticks, "BLOCK", 3)  # fewer than the episode has
    episode = EpisodeReader.open(record(tmp_path / "a.hdf5", 5, success=False))
    pictures = list(film_frames(episode))
    assert len(pictures) == 5
    height, width, _ = pictures[0].shape
    assert (width, height % 2) == (WIDTH * DPI, 0)
    header = slice(0, round(HEADER * DPI))
    for tick in (0, 2, 3, 4):
        # The middle pixel of the left camera, which is as large as the page lets it be.
        for camera, place in (("head", 0), ("wrist", 1)):
            frame = episode.frames(camera, tick, tick + 1)[0]
            seen = {tuple(pixel) for pixel in frame.reshape(-1, 3).tolist()}
            half = pictures[tick][header.stop : 320, place * width // 2 : (place + 1) * width // 2]
            shown = {tuple(pixel) for pixel in half.reshape(-1, 3).tolist()}
            assert len(seen & shown) > 0.9 * len(seen)
    assert (pictures[0][header] != pictures[1][header]).any(), "the clock"
    charts = [picture[360:] for picture in pictures]
    assert (charts[0] != charts[1]).any(axis=2).mean() < 0.05, "only the line of the tick moves"
    assert (charts[0] != charts[1]).any()


def test_what_was_executed_is_drawn_too(tmp_path):
    """An episode without a camera, with one vector of many values."""
    labels = tuple(f"joint {place}" for place in range(12))
    spec = PolicySpec(
        "arm", (), (ProprioceptionSpec("q", labels),), (ActionPart("a", 2, "m"),), 5.0
    )
    pictures = []
    for executed in (None, [0.5, 0.0]):
        path = tmp_path / f"{executed}.hdf5"
        with EpisodeWriter(path, spec) as writer:
            for tick in range(3):
                writer.append(
                    {"q": np.arange(12, dtype=np.float32)}, [0.1 * tick, 0.2],
                    timestamp_s=tick / 5, executed_action=executed,
                )  # fmt: skip
            writer.finish(instruction="wave " * 40)
        pictures.append(next(film_frames(EpisodeReader.open(path))))
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).any()


def test_the_command_writes_a_film(tmp_path, record, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = record(tmp_path / "episode_00003.hdf5", 4, success=True)
    assert main(["data", "play", str(path)]) == 0
    assert "episode_00003.mp4: 4 ticks, success: pick up the mug" in capsys.readouterr().out
    with imageio.get_reader(tmp_path / "episode_00003.mp4") as reader:
        assert reader.get_meta_data()["codec"] == "h264"
        assert reader.count_frames() >= 12
    assert main(["data", "play", str(path), "--out", str(tmp_path / "a.webp")]) == 0
    with Image.open(tmp_path / "a.webp") as film:
        assert film.n_frames >= 4
    capsys.readouterr()
    assert main(["data", "play", str(path), "--out", str(tmp_path / "a.avi")]) == 2
    assert main(["data", "play", str(path), "--demo", "demo_9"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_damaged_episode_leaves_no_film(tmp_path, record):
    path = record(tmp_path / "a.hdf5", 4, jpeg_quality=90)
    data = bytearray(path.read_bytes())
    place = data.find(b"\xff\xd8\xff")
    data[place : place + 200] = bytes(200)
    path.write_bytes(bytes(data))
    assert main(["data", "play", str(path), "--out", str(tmp_path / "a.mp4")]) == 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.hdf5"]
    with pytest.raises(UserError):
        list(film_frames(EpisodeReader.open(path)))


@pytest.mark.parametrize("suffix", FILMS)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, record, suffix, monkeypatch):
    path = record(tmp_path / "a.hdf5", 3)
    picture = np.zeros((16, 16, 3), np.uint8)
    monkeypatch.setattr(ticks, "film_frames", lambda episode: iter([picture] * 3))
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    for place, why in (
        (folder, "Is a directory"),
        (path / f"b{suffix}", "(File exists|Not a directory)"),
        (Path(f"/proc/self/b{suffix}"), "No such file or directory"),
    ):
        with pytest.raises(
            UserError, match=rf"^cannot write {place} \({why}\); give another --out$"
        ):
            DataPlayCommand(path, out=place).run()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.hdf5", folder.name]


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 1e300])
def test_a_timestamp_that_is_no_time_is_told(tmp_path, record, wrong):
    path = record(tmp_path / "a.hdf5", 3)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/timestamps"][1] = wrong
    with pytest.raises(UserError, match=r"a\.hdf5: the timestamp of tick 1 is .*, no time in s"):
        capture_times_s(EpisodeReader.open(path))


def test_timestamps_of_another_number_than_the_ticks_are_told(tmp_path, record):
    path = record(tmp_path / "a.hdf5", 3)
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/timestamps"]
        file["data/demo_0/timestamps"] = np.arange(2.0)
    with pytest.raises(UserError, match=r"a\.hdf5: 3 ticks have 2 timestamps; mend it"):
        capture_times_s(EpisodeReader.open(path))
