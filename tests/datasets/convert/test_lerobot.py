"""LeRobot's data sets: round trips, what others write, damage, and LeRobot's own class."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from ttm.datasets import EpisodeWriter, WindowDataset, open_dataset
from ttm.policy import ActionPart, CameraSpec, PolicySpec, UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
videos = pytest.importorskip("ttm.datasets.formats.lerobot")  # needs PyAV

VERSIONS = ("lerobot", "lerobot-v2.1")


@pytest.fixture
def lerobot(demos, convert) -> Path:
    """A data set of version 3.0 with PNGs, with nothing in it that LeRobot would not write."""
    target, _ = convert(demos, "lerobot", "lerobot", video_codec="none")
    (target / "meta/ttm_spec.json").unlink()
    (target / "meta/ttm_episodes.jsonl").unlink()
    return target


def edit_info(root: Path, **changes) -> dict:
    info = json.loads((root / "meta/info.json").read_text())
    info |= changes
    (root / "meta/info.json").write_text(json.dumps(info))
    return info


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_an_encoder_takes_no_priority_over_other_processes(tmp_path: Path, codec: str) -> None:
    """SVT-AV1 moves the whole process to the highest real-time priority, where root runs it."""
    before = os.sched_getscheduler(0)
    video = videos.VideoWriter(tmp_path / "video.mp4", codec, 10.0)
    for _ in range(3):
        video.append(np.zeros((64, 64, 3), np.uint8))
        threads = [int(each) for each in os.listdir("/proc/self/task")]
        real_time = {os.SCHED_FIFO, os.SCHED_RR}
        assert not real_time & {os.sched_getscheduler(each) for each in threads}
    video.close()
    assert os.sched_getscheduler(0) == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lossless_round_trip_changes_nothing(demos, convert, assert_equal, version):
    target, _ = convert(demos, "lerobot", version, video_codec="none")
    back, done = convert(target, "back")
    assert done.source_format == version
    assert open_dataset(back).spec == demos.spec
    assert_equal(demos, open_dataset(back))


@pytest.mark.parametrize("version", VERSIONS)
def test_executed_actions_and_weights_survive(
    tmp_path, spec, observation, action, convert, version
):
    with EpisodeWriter(tmp_path / "dagger" / "episode_00000.hdf5", spec) as writer:
        for tick in range(5):
            writer.append(
                observation(tick), action(tick), timestamp_s=tick / 5, reward=tick / 3,
                executed_action=action(tick + 1), loss_weight=tick + 0.5,
            )  # fmt: skip
        writer.finish(instruction="wave")
    target, _ = convert(tmp_path / "dagger", "lerobot", version, video_codec="none")
    back, _ = convert(target, "back")
    ours, theirs = open_dataset(tmp_path / "dagger")[0], open_dataset(back)[0]
    np.testing.assert_array_equal(ours.executed_actions, theirs.executed_actions)
    np.testing.assert_array_equal(ours.loss_weights, theirs.loss_weights)
    with h5py.File(ours.path) as mine, h5py.File(theirs.path) as other:
        for key in ("rewards", "dones"):
            np.testing.assert_array_equal(mine[f"data/demo_0/{key}"], other[f"data/demo_0/{key}"])


@pytest.mark.parametrize(
    ("version", "codec"), [("lerobot", "av1"), ("lerobot", "h264"), ("lerobot-v2.1", "h264")]
)
def test_videos_hold_each_frame_at_its_tick(tmp_path, convert, version, codec):
    """Two episodes share a video in version 3.0; the level of a frame tells episode and tick."""
    spec = PolicySpec("arm", (CameraSpec("head", 64, 64),), (), (ActionPart("x", 1, "m"),), 12.5)
    for number, ticks in enumerate((7, 9)):
        with EpisodeWriter(tmp_path / "levels" / f"episode_{number}.hdf5", spec) as writer:
            for tick in range(ticks):
                frame = np.full((64, 64, 3), 20 + 100 * number + 10 * tick, np.uint8)
                frame[..., 0] = 200
                writer.append({"head": frame}, [tick], timestamp_s=tick / 12.5)
            writer.finish(instruction="look")
    target, _ = convert(tmp_path / "levels", "lerobot", version, video_codec=codec)
    assert len(list(target.rglob("*.mp4"))) == (1 if version == "lerobot" else 2)
    back, done = convert(target, "back")
    assert any("lossy" in note for note in done.notes)
    assert open_dataset(back).spec == spec
    for ours, theirs in zip(open_dataset(tmp_path / "levels"), open_dataset(back), strict=True):
        difference = theirs.frames("head").astype(int) - ours.frames("head")
        assert abs(difference).mean() < 4, "a neighbouring tick would differ by 10"
        np.testing.assert_array_equal(ours.actions, theirs.actions)


@pytest.mark.parametrize(
    ("rate_hz", "count", "side", "message"),
    [
        (5, 3, 32, "has 3 frames for 6 actions"),
        (15, 18, 32, r"frame 1 of an episode is at 0\.067 s, not at its tick"),
        (5, 6, 64, "has a frame of 64x64 pixels, not 32x32"),
    ],
)
def test_videos_that_do_not_fit_the_table(tmp_path, convert, rate_hz, count, side, message):
    spec = PolicySpec("arm", (CameraSpec("head", 32, 32),), (), (ActionPart("x", 1, "m"),), 5)
    with EpisodeWriter(tmp_path / "six.hdf5", spec) as writer:
        for tick in range(6):
            writer.append({"head": np.zeros((32, 32, 3), np.uint8)}, [0.0], timestamp_s=tick / 5)
        writer.finish(instruction="look")
    target, _ = convert(tmp_path / "six.hdf5", "lerobot", "lerobot-v2.1", video_codec="h264")
    video = videos.VideoWriter(next(target.rglob("*.mp4")), "h264", rate_hz)
    for _ in range(count):
        video.append(np.zeros((side, side, 3), np.uint8))
    video.close()
    with pytest.raises(UserError, match=message):
        convert(target, "back")
    assert not (tmp_path / "back").exists()


def test_rows_out_of_order_are_refused(lerobot, convert):
    path = next((lerobot / "data").rglob("*.parquet"))
    rows = pq.read_table(path)
    pq.write_table(rows.take(np.argsort(np.arange(len(rows)) % 3, kind="stable")), path)
    with pytest.raises(UserError, match="episode 0 has rows that do not follow one another"):
        convert(lerobot, "back")


@pytest.mark.parametrize("key", ["action", "observation.state"])
@pytest.mark.parametrize("lengths", [(1, -1), (None, 0)])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_rows_of_other_lengths_are_refused(lerobot, convert, key, lengths, kind):
    """Their values would shift from row to row."""
    path = next((lerobot / "data").rglob("*.parquet"))
    rows = pq.read_table(path)
    values = rows[key].to_pylist()
    more, fewer = lengths
    values[1] = None if more is None else [*values[1], *[0.5] * more]
    values[2] = values[2][: len(values[2]) + fewer]
    column = pa.array(values, kind(pa.float32()))
    pq.write_table(rows.set_column(rows.column_names.index(key), key, column), path)
    with pytest.raises(UserError, match=f"parquet: episode 0 has rows of .* values in {key}; "):
        convert(lerobot, "back")


def test_depth_in_a_camera_is_refused(lerobot, convert, tmp_path):
    """A grey PNG of 16 bits, of which 8 bits would be all white."""
    path = next((lerobot / "data").rglob("*.parquet"))
    rows, key = pq.read_table(path), "observation.images.head"
    images = rows[key].to_pylist()
    buffer = io.BytesIO()
    Image.fromarray(np.full((12, 16), 1200, np.uint16)).save(buffer, format="PNG")
    images[1]["bytes"] = buffer.getvalue()
    column = pa.array(images, rows[key].type)
    pq.write_table(rows.set_column(rows.column_names.index(key), key, column), path)
    with pytest.raises(UserError, match="grey PNG of 16 bits, as depth is stored"):
        convert(lerobot, "back")
    assert not (tmp_path / "back").exists()


def test_no_text_is_a_command_of_the_terminal(demos, convert, capsys):
    source, _ = convert(demos, "lerobot", "lerobot-v2.1", video_codec="none")
    (source / "meta/ttm_spec.json").unlink()
    (source / "meta/ttm_episodes.jsonl").unlink()

    def tasks(text: str) -> None:
        lines = [json.dumps({"task_index": index, "task": text}) for index in range(2)]
        (source / "meta/tasks.jsonl").write_text("\n".join(lines))

    tasks("wave\n\x1b[2J")
    back, _ = convert(source, "back")
    assert {each.instruction for each in open_dataset(back)} == {"wave \ufffd[2J"}
    edit_info(source, robot_type="arm\x1b[2J")
    with pytest.raises(
        UserError, match=r"the name 'arm\\\\x1b\[2J' is too long, or cannot be printed"
    ):
        convert(source, "again")
    tasks("x" * 3_000_000)
    with pytest.raises(UserError, match="a task has 3000000 characters, and at most 1000"):
        convert(source, "again")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_that_is_no_text_is_refused(demos, convert, version):
    source, _ = convert(demos, "lerobot", version, video_codec="none")
    if version == "lerobot":
        path = source / "meta/tasks.parquet"
        tasks = pq.read_table(path)
        (at,) = (i for i, name in enumerate(tasks.column_names) if name != "task_index")
        name = tasks.column_names[at]
        pq.write_table(tasks.set_column(at, name, pa.array([3.5] * len(tasks))), path)
    else:
        lines = [json.loads(line) for line in (source / "meta/tasks.jsonl").open()]
        texts = [json.dumps({**line, "task": 3.5}) for line in lines]
        (source / "meta/tasks.jsonl").write_text("\n".join(texts))
    with pytest.raises(UserError, match=r"its tasks is damaged \(the task 3.5 is no text\)"):
        convert(source, "back")


@pytest.mark.parametrize("changes", [{"fps": None}, {"splits": ["a", "b"]}])
def test_info_of_another_form_is_one_line(lerobot, convert, changes):
    edit_info(lerobot, **changes)
    with pytest.raises(UserError, match="as lerobot it is damaged"):
        convert(lerobot, "back")


def test_what_others_write(lerobot, convert, assert_equal, demos):
    info = edit_info(lerobot, splits={"train": "0:1", "val": "1:2"}, robot_type="so100", fps=5)
    features = info["features"]
    features["observation.state"]["names"] = {"motors": ["pan", "lift", "roll"]}
    features["observation.environment_state"] = {"dtype": "float32", "shape": [9], "names": None}
    features["observation.images.depth"] = {
        "dtype": "video", "shape": [4, 4, 3], "names": None, "info": {"video.is_depth_map": True},
    }  # fmt: skip
    edit_info(lerobot, features=features)
    with pytest.raises(UserError, match="list of its episodes is damaged"):
        convert(lerobot, "back")  # a video feature without videos
    del features["observation.images.depth"]
    edit_info(lerobot, features=features)
    back, done = convert(lerobot, "back")
    assert any("environment_state (the simulator's state)" in note for note in done.notes)
    found = open_dataset(back)
    assert found.spec.robot == "so100"
    assert found.spec.rate_hz == 5
    assert found.spec.proprioception[0].labels == ("pan", "lift", "roll")
    assert [each.masks for each in found] == [{"train"}, {"valid"}]
    assert [each.success for each in found] == [True, False]
    for ours, theirs in zip(demos, found, strict=True):
        np.testing.assert_array_equal(ours.actions, theirs.actions)
        np.testing.assert_array_equal(ours.frames("head"), theirs.frames("head"))
        np.testing.assert_array_equal(ours.proprioception("joints"), theirs.proprioception("state"))
        assert ours.instruction == theirs.instruction


@pytest.mark.parametrize(
    ("splits", "masks"),
    [
        ({"train": "0:2"}, [set(), set()]),
        ({"train": "0:1"}, [{"train"}, set()]),
        ({"val": "1:2"}, [set(), {"valid"}]),
        ({}, [set(), set()]),
    ],
)
def test_a_split_that_holds_episodes_out_is_kept(lerobot, convert, splits, masks):
    edit_info(lerobot, splits=splits)
    back, _ = convert(lerobot, "back")
    assert [each.masks for each in open_dataset(back)] == masks


def test_splits_that_were_given_to_ours_since_are_kept(demos, convert):
    """Their masks lie beside LeRobot's own data, and would win."""
    target, _ = convert(demos, "lerobot", "lerobot", video_codec="none")
    edit_info(target, splits={"train": "1:2", "val": "0:1"})
    back, _ = convert(target, "back")
    assert [each.masks for each in open_dataset(back)] == [{"valid"}, {"train"}]


def test_training_sees_the_same_windows(demos, convert, monkeypatch):
    target, _ = convert(demos, "lerobot", "lerobot", video_codec="none")
    back, _ = convert(target, "back")
    embed = "ttm.datasets.dataset.embed_instruction"
    monkeypatch.setattr(embed, lambda text: np.full(384, len(text), np.float32))
    ours, theirs = (
        WindowDataset(episodes, window=3).gather([0, 1, 2])
        for episodes in (demos, open_dataset(back))
    )
    for name in ("head", "wrist"):
        np.testing.assert_array_equal(ours["images"][name], theirs["images"][name])
    np.testing.assert_array_equal(ours["actions"], theirs["actions"])
    np.testing.assert_array_equal(ours["valid"], theirs["valid"])


def test_counted_timestamps_are_not_taken_for_measured_ones(lerobot, convert):
    features = edit_info(lerobot)["features"]
    del features["capture_time_s"]
    edit_info(lerobot, features=features)
    path = next((lerobot / "data").rglob("*.parquet"))
    pq.write_table(pq.read_table(path).drop_columns(["capture_time_s"]), path)
    back, _ = convert(lerobot, "back")
    assert open_dataset(back)[0].timestamps is None


def test_facts_of_another_state_are_not_used(demos, convert):
    target, _ = convert(demos, "lerobot", "lerobot", video_codec="none")
    facts = target / "meta/ttm_episodes.jsonl"
    facts.write_text(facts.read_text().splitlines()[0] + "\n")
    _, done = convert(target, "back")
    assert any("another state of the data set" in note for note in done.notes)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "meta/episodes", "data"])
def test_damage_is_one_line(lerobot, convert, name, tmp_path):
    place = lerobot / name
    file = place if place.is_file() else next(place.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="damaged"):
        convert(lerobot, "back")
    assert not (tmp_path / "back").exists()


def test_frames_that_no_video_can_hold(tmp_path, convert):
    spec = PolicySpec("arm", (CameraSpec("head", 7, 9),), (), (ActionPart("x", 1, "m"),), 5)
    with EpisodeWriter(tmp_path / "odd.hdf5", spec) as writer:
        writer.append({"head": np.zeros((7, 9, 3), np.uint8)}, [0.0], timestamp_s=0)
        writer.finish(instruction="look")
    with pytest.raises(UserError, match="encodes no frames of 9x7; give --video-codec none"):
        convert(tmp_path / "odd.hdf5", "lerobot", "lerobot")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["odd.hdf5"]


def test_old_versions_are_named(lerobot, convert):
    edit_info(lerobot, codebase_version="v1.6")
    with pytest.raises(UserError, match=r"version v1\.6, which is not read"):
        convert(lerobot, "back")


def test_a_missing_package_is_named(demos, convert, monkeypatch):
    monkeypatch.setattr("ttm.datasets.formats.table.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs pyarrow and av.*ttm-policy-stack\[convert\]"):
        convert(demos, "lerobot", "lerobot")
