"""Opening data sets, files that are foreign or damaged, statistics, and embeddings of instructions."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset, dataset_statistics, embed_instructions, open_dataset
from ttm.datasets.layout import natural_key
from ttm.policy import UserError


def foreign_file(
    path: Path, demos: int = 3, control_freq: float | None = None, **attributes: object
) -> Path:
    """Write a file as robomimic does: no ttm_spec, no timestamps, a gripper among the actions."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        kwargs = {"robots": ["Panda"]}
        kwargs |= {} if control_freq is None else {"control_freq": control_freq}
        file.create_group("data").attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "type": 1, "env_kwargs": kwargs}
        )
        file["data"].attrs.update(attributes)
        for i in range(demos):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = 5
            actions = random.normal(size=(5, 4)).astype(np.float32)
            actions[:, 2] = [0, 0, 1, 1, i % 2]
            demo["actions"] = actions
            demo["obs/agentview_image"] = random.integers(0, 256, (5, 6, 8, 3), dtype=np.uint8)
            demo["obs/agentview_depth"] = random.random((5, 6, 8, 1), dtype=np.float32)
            demo["obs/eef_pos"] = random.normal(size=(5, 3))
    return path


def test_a_folder_is_read_through_in_natural_order(tmp_path, record):
    for name in ("episode_10", "episode_2", "sub/episode_1"):
        record(tmp_path / f"{name}.hdf5")
    (tmp_path / ".episode_3.hdf5.partial").write_bytes(b"in progress")
    (tmp_path / "notes.txt").write_text("not an episode")
    names = [episode.path.name for episode in open_dataset(tmp_path)]
    assert names == ["episode_2.hdf5", "episode_10.hdf5", "episode_1.hdf5"]
    assert len(open_dataset(f"{tmp_path}/episode_*.hdf5")) == 2
    assert open_dataset(tmp_path).num_ticks == 18


def test_digits_that_are_no_numbers_are_sorted_as_letters():
    assert sorted(["2", "1²2", "²", "1"], key=natural_key) == ["1", "1²2", "2", "²"]


def test_demos_come_in_natural_order(tmp_path):
    episodes = open_dataset(foreign_file(tmp_path / "a.hdf5", demos=12))
    assert [episode.name for episode in episodes] == [f"demo_{i}" for i in range(12)]
    assert [episode.name for episode in episodes[2:4]] == ["demo_2", "demo_3"]


def test_masks_choose_episodes(tmp_path, record):
    for i, split in enumerate(["train", "valid", "train"]):
        record(tmp_path / f"{i}.hdf5", seed=i, split=split)
    episodes = open_dataset(tmp_path)
    assert [episode.seed for episode in episodes.filter("train")] == [0, 2]
    assert [episode.seed for episode in episodes.filter("valid")] == [1]
    with pytest.raises(UserError, match=r"no mask 'tests'; it has: train, valid"):
        episodes.filter("tests")


def test_without_masks_every_tenth_episode_is_held_out(tmp_path):
    episodes = open_dataset(foreign_file(tmp_path / "a.hdf5", demos=21))
    train, valid = episodes.filter("train"), episodes.filter("valid")
    assert [episode.name for episode in valid] == ["demo_9", "demo_19"]
    assert len(train) == 19
    assert "every tenth" in train.note
    few = open_dataset(foreign_file(tmp_path / "b.hdf5", demos=3))
    assert [episode.name for episode in few.filter("valid")] == ["demo_2"]


def test_episodes_that_are_all_for_training_are_split_too(tmp_path, record):
    for i in range(10):
        record(tmp_path / f"{i}.hdf5", ticks=2, split="train")
    episodes = open_dataset(tmp_path)
    assert (len(episodes.filter("train")), len(episodes.filter("valid"))) == (9, 1)


def masked(path: Path, **masks: list[bytes]) -> Path:
    foreign_file(path, demos=4)
    with h5py.File(path, "a") as file:
        for key, names in masks.items():
            file.create_dataset(f"mask/{key}", data=np.array(names, dtype="S12"))
    return path


@pytest.mark.parametrize(
    ("masks", "train", "valid"),
    [
        ({"valid": [b"demo_0", b"demo_1"]}, "23", "01"),
        ({"valid": [b"demo_0"], "test": [b"demo_1"]}, "23", "0"),
        ({"test": [b"demo_3"]}, "01", "2"),
        ({"val": [b"demo_3"]}, "01", "2"),
        ({"train": [b"demo_0", b"demo_1"]}, "0", "1"),
        ({"train": [b"demo_0", b"demo_1"], "valid": []}, "0", "1"),
        ({"train": [], "valid": [b"demo_0", b"demo_1", b"demo_2", b"demo_3"]}, "", "0123"),
    ],
)
def test_what_any_mask_holds_out_is_not_trained_on(tmp_path, masks, train, valid):
    episodes = open_dataset(masked(tmp_path / "a.hdf5", **masks))
    found = [[each.name[-1] for each in episodes.filter(key)] for key in ("train", "valid")]
    assert found == [list(train), list(valid)]


@pytest.mark.parametrize(
    ("masks", "what"),
    [
        ({"train": []}, "mask/train is empty"),
        ({"train": [], "valid": [b"demo_0"]}, "mask/train is empty"),
        ({"train": [b"demo_9"]}, "mask/train names none of the file's demos"),
        ({"valid": [b"data/demo_0"]}, "mask/valid names none of the file's demos"),
    ],
)
def test_masks_that_cannot_be_followed_are_refused(tmp_path, masks, what):
    path = masked(tmp_path / "a.hdf5", **masks)
    with pytest.raises(UserError, match=what):
        open_dataset(path)
    assert any(what in fault.what for fault in check_dataset(path).faults)


def test_a_spec_is_inferred_for_foreign_files(tmp_path):
    episodes = open_dataset(foreign_file(tmp_path / "a.hdf5", control_freq=20))
    spec = episodes.spec
    assert (spec.robot, spec.rate_hz) == ("Panda", 20.0)
    assert [(c.name, c.height, c.width) for c in spec.cameras] == [("agentview_image", 6, 8)]
    assert [(v.name, v.size) for v in spec.proprioception] == [("eef_pos", 3)]
    parts = [(part.name, part.size, part.kind) for part in spec.actions]
    assert parts == [
        ("continuous", 2, "continuous"),
        ("binary", 1, "binary"),
        ("continuous_2", 1, "continuous"),
    ]
    assert "inferred" in episodes.note
    assert "do the task" in episodes.note
    spec.validate_observation(episodes[0].observation(0))


def test_the_rate_is_measured_where_there_are_timestamps(tmp_path):
    path = foreign_file(tmp_path / "a.hdf5", control_freq=20)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            demo["timestamps"] = np.array([0.0, 0.101, 0.2, 0.299, 0.4])
    assert open_dataset(path).spec.rate_hz == 10.0


@pytest.mark.parametrize("where", ["problem_info", "ep_meta"])
def test_instructions_of_libero_and_robocasa(tmp_path, where):
    path = foreign_file(
        tmp_path / "a.hdf5", problem_info=json.dumps({"language_instruction": "lift it"})
    )
    if where == "ep_meta":
        with h5py.File(path, "a") as file:
            file["data/demo_0"].attrs["ep_meta"] = json.dumps({"lang": "open it"})
    assert (
        open_dataset(path)[0].instruction
        == {"problem_info": "lift it", "ep_meta": "open it"}[where]
    )


def test_real_episodes_read_the_same_in_both_encodings(real_data):
    raw = open_dataset(real_data / "bridge_v2_robomimic.hdf5")
    jpeg = open_dataset(real_data / "bridge_v2_jpeg.hdf5")
    assert raw.spec == jpeg.spec
    assert (len(raw), raw.num_ticks, len(raw.filter("train")), len(raw.filter("valid"))) == (
        25,
        250,
        20,
        5,
    )
    assert [(part.size, part.kind) for part in raw.spec.actions] == [
        (6, "continuous"),
        (1, "binary"),
    ]
    assert raw[4].instruction == "put carrot on plate"
    np.testing.assert_array_equal(raw[4].actions, jpeg[4].actions)
    difference = raw[4].frames("image_0").astype(int) - jpeg[4].frames("image_0")
    assert np.abs(difference).mean() < 5


def test_an_episode_can_be_sent_to_a_worker(tmp_path, record):
    record(tmp_path / "a.hdf5")
    episode = open_dataset(tmp_path)[0]
    again = pickle.loads(pickle.dumps(episode))
    np.testing.assert_array_equal(again.frames("wrist", 1, 3), episode.frames("wrist")[1:3])


def test_wrong_names_and_ticks_are_told(tmp_path, record):
    record(tmp_path / "a.hdf5")
    episode = open_dataset(tmp_path)[0]
    with pytest.raises(UserError, match=r"camera 'tail' .* it has: head, wrist"):
        episode.frames("tail")
    with pytest.raises(IndexError, match="tick 6 of demo_0"):
        episode.observation(6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "no.hdf5", "does not exist"),
        (lambda folder: folder, "folder has no"),
        (lambda folder: folder / "*.h5", "glob matches no file"),
    ],
)
def test_a_place_without_data_is_told(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        open_dataset(make(tmp_path))


def test_a_truncated_file_is_named_with_the_remedy(tmp_path, record):
    record(tmp_path / "a.hdf5")
    path = record(tmp_path / "b.hdf5")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"b\.hdf5: it is cut short.*copy it again") as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("actions", None, "actions is missing"),
        ("obs/head", None, "obs/head is missing"),
        ("obs/joints", np.zeros((5, 3), np.float32), "obs/joints has 5 ticks, actions 6"),
        ("obs/joints", np.zeros((6, 2), np.float32), r"obs/joints has shape \(6, 2\), not \(T, 3"),
    ],
)
def test_an_episode_that_is_not_whole_is_refused(tmp_path, record, key, value, message):
    path = record(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file[f"data/demo_0/{key}"]
        if value is not None:
            file[f"data/demo_0/{key}"] = value
    with pytest.raises(UserError, match=message):
        open_dataset(path)


def test_files_of_different_specs_do_not_mix(tmp_path, record, spec):
    record(tmp_path / "a.hdf5")
    path = record(tmp_path / "b.hdf5")
    with h5py.File(path, "a") as file:
        file["data"].attrs["ttm_spec"] = spec.to_json().replace("test_arm", "other_arm")
    with pytest.raises(
        UserError, match=r"a\.hdf5 was made for robot test_arm, but .*b\.hdf5 has other_arm"
    ):
        open_dataset(tmp_path)
    path.unlink()
    foreign_file(tmp_path / "c.hdf5")
    with pytest.raises(UserError, match=r"c\.hdf5 carries no spec"):
        open_dataset(tmp_path)


def test_a_file_that_is_no_data_set_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["weights"] = [1.0]
    with pytest.raises(UserError, match="no group 'data'"):
        open_dataset(tmp_path)


EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


def test_each_instruction_is_embedded_once_unless_stored(tmp_path, record, monkeypatch):
    asked = []

    def embed(text):
        asked.append(text)
        return np.full(384, len(text), np.float32)

    monkeypatch.setattr("ttm.datasets.dataset.embed_instruction", embed)
    record(tmp_path / "0.hdf5", instruction="stored", embedding=EMBEDDING)
    record(
        tmp_path / "1.hdf5",
        instruction="of another model",
        embedding=EMBEDDING,
        language_model="other",
    )
    for i in (2, 3):
        record(tmp_path / f"{i}.hdf5", instruction="push")
    record(tmp_path / "4.hdf5", instruction="")
    embeddings = embed_instructions(list(open_dataset(tmp_path)))
    assert asked == ["of another model", "push", "do the task"]
    np.testing.assert_array_equal(embeddings[0], EMBEDDING)
    assert embeddings[1:, 0].tolist() == [16, 4, 4, 11]


def test_statistics_are_over_all_ticks(tmp_path, record):
    for i, ticks in enumerate((6, 3, 10)):
        record(tmp_path / f"{i}.hdf5", ticks=ticks, seed=i)
    episodes = open_dataset(tmp_path)
    statistics = dataset_statistics(episodes)
    actions = np.concatenate([episode.actions for episode in episodes])
    np.testing.assert_allclose(statistics.actions.mean, actions.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.actions.std, actions.std(axis=0), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(statistics.actions.max, actions.max(axis=0))
    assert statistics.proprioception["joints"].std.shape == (3,)
    with pytest.raises(UserError, match="no episode"):
        dataset_statistics([])
