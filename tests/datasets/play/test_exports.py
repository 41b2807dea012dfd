"""Episodes in the format of rerun, read again by its own library, and what keeps them from being written."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeReader, EpisodeWriter
from ttm.datasets.tools import play as report
from ttm.datasets.tools.play import WRITERS, DataPlayCommand, capture_times_s
from ttm.policy import UserError
from ttm.training.cli import main


@pytest.fixture
def episode(tmp_path, spec, observation, action) -> EpisodeReader:
    """Three ticks, in which the robot did half of what it was told."""
    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        for tick in range(3):
            told = action(tick)
            writer.append(
                observation(tick),
                told,
                timestamp_s=100 + tick / 5,
                executed_action=told / 2,
            )
        return EpisodeReader.open(writer.finish(instruction="wave"))


def test_rerun_has_every_frame_and_value(episode, tmp_path):
    chunk = pytest.importorskip("rerun.chunk")
    assert main(["data", "play", str(episode.path), "--out", str(tmp_path / "a.rrd")]) == 0
    columns: dict[str, list[tuple[int, list[float]]]] = {}
    for part in chunk.RrdReader(tmp_path / "a.rrd").stream():
        batch = part.to_record_batch()
        for name in {"Scalars:scalars", "Image:buffer"} & set(batch.schema.names):
            ticks, values = (batch[each].to_pylist() for each in ("tick", name))
            columns.setdefault(part.entity_path, []).extend(zip(ticks, values, strict=True))
    arm = [values for _, values in sorted(columns["/action/arm"])]
    np.testing.assert_array_equal(np.array(arm, np.float32), episode.actions[:, :3])
    done = [values for _, values in sorted(columns["/executed_action/arm"])]
    np.testing.assert_array_equal(np.array(done, np.float32), episode.executed_actions[:, :3])
    joints = [values for _, values in sorted(columns["/proprioception/joints"])]
    np.testing.assert_array_equal(np.array(joints, np.float32), episode.proprioception("joints"))
    frames = [np.array(values[0], np.uint8) for _, values in sorted(columns["/cameras/head"])]
    np.testing.assert_array_equal(np.stack(frames).reshape(3, 12, 16, 3), episode.frames("head"))


def test_without_the_package_one_is_told_what_to_install(episode, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "ttm-policy-stack\[look\]"'):
        DataPlayCommand(episode.path, out=tmp_path / "a.rrd").run()
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]


def test_a_failure_leaves_no_file(episode, tmp_path, monkeypatch):
    pytest.importorskip("rerun")

    def damaged(self, camera, start=0, stop=None):
        raise UserError("the frames are damaged")

    monkeypatch.setattr(EpisodeReader, "frames", damaged)
    with pytest.raises(UserError, match="the frames are damaged"):
        DataPlayCommand(episode.path, out=tmp_path / "a.rrd").run()
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]


@pytest.mark.parametrize("suffix", [*WRITERS, ".rrd"])
def test_a_place_that_cannot_be_written_is_one_line(episode, tmp_path, suffix, monkeypatch):
    if suffix == ".rrd":
        pytest.importorskip("rerun")
    picture = np.zeros((16, 16, 3), np.uint8)
    monkeypatch.setattr(report, "film_frames", lambda episode: iter([picture] * 3))
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    for place, why in (
        (folder, "Is a directory"),
        (episode.path / f"b{suffix}", "(File exists|Not a directory)"),
        (Path(f"/proc/self/b{suffix}"), "No such file or directory"),
    ):
        with pytest.raises(
            UserError, match=rf"^cannot write {place} \({why}\); give another --out$"
        ):
            DataPlayCommand(episode.path, out=place).run()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.hdf5", folder.name]


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 1e300])
def test_a_timestamp_that_is_no_time_is_told(episode, tmp_path, wrong):
    with h5py.File(episode.path, "r+") as file:
        file["data/demo_0/timestamps"][1] = wrong
    with pytest.raises(
        UserError, match=r"a\.hdf5: the timestamp of tick 1 is .*, which is no time"
    ):
        capture_times_s(EpisodeReader.open(episode.path))


def test_timestamps_of_another_number_than_the_ticks_are_told(episode):
    with h5py.File(episode.path, "r+") as file:
        del file["data/demo_0/timestamps"]
        file["data/demo_0/timestamps"] = np.arange(2.0)
    with pytest.raises(
        UserError, match=r"a\.hdf5: 3 ticks have 2 timestamps; play the episode as a"
    ):
        capture_times_s(EpisodeReader.open(episode.path))
