"""Recording: what is written, what is refused, and what remains after a crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeWriter, check_dataset, next_episode_path, open_dataset
from ttm.datasets import writer as episode_writer
from ttm.datasets.hdf5 import is_written_in, remove_leftovers
from ttm.policy import PolicySpec, UserError
from ttm.policy.errors import MalformedObservation, MissingObservation
from ttm.policy.files import partial_path, publish_partial


def test_what_is_written_is_read_back(tmp_path, record, spec, observation, action):
    embedding = np.linspace(0, 1, 384, dtype=np.float32)
    facts = {"task": "pick", "success": True, "embedding": embedding, "language_model": "m"}
    record(tmp_path / "a.hdf5", ticks=5, seed=7, **facts)
    (episode,) = open_dataset(tmp_path / "a.hdf5")
    assert (episode.spec, episode.num_samples, episode.name) == (spec, 5, "demo_0")
    assert (episode.instruction, episode.task) == ("pick up the mug", "pick")
    assert (episode.success, episode.seed, episode.masks) == (True, 7, {"train"})
    np.testing.assert_array_equal(episode.timestamps, 100.0 + 0.2 * np.arange(5))
    np.testing.assert_array_equal(episode.actions, [action(t) for t in range(5)])
    np.testing.assert_array_equal(episode.language_embedding, embedding)
    assert episode.language_model == "m"
    seen = episode.observation(3)
    spec.validate_observation(seen)
    for name, value in observation(3, seed=7).items():
        np.testing.assert_array_equal(seen[name], value)


def test_the_layout_is_robomimics(tmp_path, record, spec):
    with h5py.File(record(tmp_path / "a.hdf5", ticks=5, split="valid")) as file:
        assert file["data"].attrs["total"] == 5
        assert json.loads(file["data"].attrs["env_args"]).keys() == {
            "env_name",
            "type",
            "env_kwargs",
        }
        assert PolicySpec.from_json(file["data"].attrs["ttm_spec"]) == spec
        assert [name.decode() for name in file["mask/valid"][()]] == ["demo_0"]
        assert file["mask/valid"].dtype.kind == "S"
        demo = file["data/demo_0"]
        assert demo.attrs["num_samples"] == 5
        assert demo["obs/head"].chunks == (1, 12, 16, 3)
        assert {
            len(demo[key]) for key in ("actions", "rewards", "dones", "timestamps", "obs/joints")
        } == {5}


def test_jpeg_frames_are_close_to_what_was_seen(tmp_path, record, spec):
    smooth = np.tile(np.linspace(0, 255, 16, dtype=np.uint8)[None, :, None], (12, 1, 3))
    with EpisodeWriter(tmp_path / "a.hdf5", spec, jpeg_quality=95) as writer:
        seen = {"head": smooth, "wrist": smooth[:8, :8], "joints": np.zeros(3, np.float32)}
        writer.append(seen, np.zeros(4), timestamp_s=0.0)
        writer.finish(instruction="look")
    (episode,) = open_dataset(tmp_path)
    assert np.abs(episode.frames("head")[0].astype(int) - smooth).max() <= 6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"head": None}, MissingObservation, "camera 'head' is missing"),
        ({"head": np.zeros((4, 4, 3), np.uint8)}, MalformedObservation, "camera 'head' gave"),
        ({"joints": np.array([0, np.nan, 0], np.float32)}, MalformedObservation, "elbow"),
    ],
)
def test_a_refused_observation_changes_nothing(
    tmp_path, spec, observation, action, change, error, message
):
    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        writer.append(observation(0), action(0), timestamp_s=0.0)
        bad = {key: value for key, value in (observation(1) | change).items() if value is not None}
        with pytest.raises(error, match=message):
            writer.append(bad, action(1), timestamp_s=0.2)
        writer.append(observation(2), action(2), timestamp_s=0.4)
        writer.finish(instruction="go")
    (episode,) = open_dataset(tmp_path)
    np.testing.assert_array_equal(episode.timestamps, [0.0, 0.4])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, 0, 0], "has shape"),
        ([0, 0.5, 0, 1], r"'arm'\[1\] is 0.5; the spec wants -0.1 to 0.1 m"),
        ([0, np.nan, 0, 1], r"'arm'\[1\] is nan"),
        ([0, 0, 0, 0.5], r"'gripper'\[0\] is 0.5; the spec wants 0 or 1"),
    ],
)
def test_a_refused_action_says_which_and_why(tmp_path, spec, observation, bad, message):
    with (
        EpisodeWriter(tmp_path / "a.hdf5", spec) as writer,
        pytest.raises(UserError, match=message),
    ):
        writer.append(observation(0), bad, timestamp_s=0.0)


def test_an_action_at_its_limit_is_taken(tmp_path, spec, observation):
    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        writer.append(observation(0), [0.1, -0.1, 0.1, 1], timestamp_s=0.0)
        assert writer.num_samples == 1


def test_without_finish_nothing_stays(tmp_path, spec, observation, action):
    def fall():
        with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
            writer.append(observation(0), action(0), timestamp_s=0.0)
            raise RuntimeError("robot fell")

    with pytest.raises(RuntimeError, match="robot fell"):
        fall()
    with EpisodeWriter(tmp_path / "b.hdf5", spec) as writer:
        writer.append(observation(0), action(0), timestamp_s=0.0)
    assert list(tmp_path.iterdir()) == []


def test_no_episode_is_overwritten(tmp_path, record, spec, observation, action):
    path = record(tmp_path / "a.hdf5")
    with pytest.raises(UserError, match="exists already"):
        EpisodeWriter(path, spec)
    with EpisodeWriter(tmp_path / "b.hdf5", spec) as writer:
        writer.append(observation(0), action(0), timestamp_s=0.0)
        record(tmp_path / "c.hdf5").rename(tmp_path / "b.hdf5")
        with pytest.raises(UserError, match="exists already"):
            writer.finish(instruction="go")


def test_misuse_is_told(tmp_path, record, spec, observation, action):
    writer = EpisodeWriter(tmp_path / "a.hdf5", spec)
    with pytest.raises(UserError, match="no tick"):
        writer.finish(instruction="go")
    with pytest.raises(UserError, match="timestamp_s is nan"):
        writer.append(observation(0), action(0), timestamp_s=float("nan"))
    writer.abandon()
    writer.abandon()
    with pytest.raises(UserError, match="this episode has ended"):
        writer.append(observation(0), action(0), timestamp_s=0.0)
    with pytest.raises(UserError, match="jpeg_quality is 100"):
        EpisodeWriter(tmp_path / "b.hdf5", spec, jpeg_quality=100)


def test_a_folder_that_cannot_be_made_is_told(tmp_path, spec):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot record to"):
        EpisodeWriter(tmp_path / "file" / "a.hdf5", spec)


def test_the_next_path_counts_on_and_skips_episodes_in_progress(tmp_path, record, spec):
    assert next_episode_path(tmp_path / "new").name == "episode_00000.hdf5"
    record(next_episode_path(tmp_path))
    with EpisodeWriter(next_episode_path(tmp_path), spec):
        assert next_episode_path(tmp_path).name == "episode_00002.hdf5"


def test_nothing_is_taken_for_a_leftover_until_it_has_its_name(tmp_path, record, spec, monkeypatch):
    """HDF5 has closed the file by then, and released its own lock."""
    found = []

    def publish(path: Path) -> None:
        found.append(remove_leftovers(tmp_path))
        publish_partial(path)

    monkeypatch.setattr(episode_writer, "publish_partial", publish)
    path = record(tmp_path / "episode_00000.hdf5")
    assert (found, path.exists(), is_written_in(tmp_path)) == ([[]], True, False)
    with EpisodeWriter(tmp_path / "b.hdf5", spec):
        assert is_written_in(tmp_path)
        with pytest.raises(UserError, match="cannot record to"):
            EpisodeWriter(tmp_path / "b.hdf5", spec)
    assert not is_written_in(tmp_path)
    assert remove_leftovers(tmp_path / "none") == []


RECORDER = """
import sys
import numpy as np
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec

spec = PolicySpec("r", (CameraSpec("head", 8, 8),), (), (ActionPart("arm", 1, "m"),), 5.0)

def record(writer, ticks):
    for tick in range(ticks):
        frame = np.random.default_rng(tick).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        writer.append({"head": frame}, [0.1 * (tick % 2)], timestamp_s=0.2 * tick)

with EpisodeWriter(sys.argv[1] + "/episode_00000.hdf5", spec) as writer:
    record(writer, 40)
    writer.finish(instruction="go")
with EpisodeWriter(sys.argv[1] + "/episode_00001.hdf5", spec) as writer:
    record(writer, 40)
    print("recording", flush=True)
    sys.stdin.read()
"""


def test_a_killed_recorder_loses_only_the_episode_in_progress(tmp_path, record):
    recorder = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == b"recording\n"
    killed = tmp_path / "episode_00001.hdf5"
    assert remove_leftovers(tmp_path) == [], "it is being recorded"
    (warning,) = check_dataset(tmp_path).faults
    assert (warning.path, warning.what[:19]) == (partial_path(killed), "it is being written")
    os.kill(recorder.pid, signal.SIGKILL)
    recorder.communicate()
    assert partial_path(killed).exists()
    assert not killed.exists()
    (warning,) = check_dataset(tmp_path).faults
    assert "it was never finished" in warning.what
    (tmp_path / ".other.hdf5.partial").touch()
    assert remove_leftovers(tmp_path) == [partial_path(killed)]
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        ".other.hdf5.partial",
        "episode_00000.hdf5",
    ]
    (whole,) = open_dataset(tmp_path)
    assert (whole.path.name, whole.num_samples) == ("episode_00000.hdf5", 40)
    assert len(whole.frames("head")) == 40


def test_a_full_disk_is_told_before_hdf5_meets_it(tmp_path, spec, observation, action, monkeypatch):
    """HDF5 crashes the process at times if the disk becomes full while it writes."""
    usage, free = shutil.disk_usage(tmp_path), [2**30, 2**20]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free.pop(0)))
    told = r"cannot write .*a\.hdf5\.partial \(No space left on device\); the episode is lost"
    writer = EpisodeWriter(tmp_path / "a.hdf5", spec)
    with writer:
        writer.append(observation(0), action(0), timestamp_s=100.0)
        with pytest.raises(UserError, match=told):
            writer.append(observation(1), action(1), timestamp_s=100.2)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="could not be written"):
        writer.finish(instruction="wave")
