"""Conversion between HDF5 files: ours, robomimic's, and what an interrupted one leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset, open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.formats import hdf5 as demo_group
from ttm.datasets.layout import JPEG
from ttm.policy import UserError


@pytest.mark.parametrize(
    ("to", "name"), [("ttm", "copy"), ("ttm", "one.hdf5"), ("robomimic", "r.hdf5")]
)
def test_everything_survives(demos, convert, assert_equal, to, name):
    target, done = convert(demos, name, to)
    assert (done.num_episodes, done.num_ticks) == (2, 10)
    copy = open_dataset(target)
    assert copy.spec == demos.spec
    assert_equal(demos, copy)
    assert check_dataset(target).num_errors == 0


def test_jpegs_stay_the_same_bytes(tmp_path, record, convert):
    original = record(tmp_path / "jpeg" / "episode_00000.hdf5", jpeg_quality=80)
    target, _ = convert(original.parent, "copy.hdf5")
    with h5py.File(original) as ours, h5py.File(target) as theirs:
        stored = theirs["data/demo_0/obs/head"]
        assert stored.attrs["encoding"] == JPEG
        for mine, other in zip(ours["data/demo_0/obs/head"], stored, strict=True):
            np.testing.assert_array_equal(mine, other)


def test_robomimic_gets_next_observations_and_instructions(demos, convert):
    target, _ = convert(demos, "r.hdf5", "robomimic")
    with h5py.File(target) as file:
        demo = file["data/demo_0"]
        for name in ("head", "joints"):
            np.testing.assert_array_equal(demo[f"next_obs/{name}"][:-1], demo[f"obs/{name}"][1:])
            np.testing.assert_array_equal(demo[f"next_obs/{name}"][-1], demo[f"obs/{name}"][-1])
        assert json.loads(demo.attrs["ep_meta"]) == {"lang": "pick up the mug"}
        assert "problem_info" not in file["data"].attrs, "the two episodes' instructions differ"
        assert file["data"].attrs["total"] == 10


def test_robomimics_own_loader_reads_it(demos, convert):
    dataset = pytest.importorskip("robomimic.utils.dataset")
    obs_utils = pytest.importorskip("robomimic.utils.obs_utils")
    target, _ = convert(demos, "r.hdf5", "robomimic")
    obs_utils.initialize_obs_utils_with_obs_specs(
        [{"obs": {"low_dim": ["joints"], "rgb": ["head"]}}]
    )
    for load_next in (False, True):
        loaded = dataset.SequenceDataset(
            hdf5_path=str(target), obs_keys=("joints", "head"), dataset_keys=("actions",),
            frame_stack=1, seq_length=2, pad_frame_stack=True, pad_seq_length=True,
            get_pad_mask=False, goal_mode=None, hdf5_cache_mode=None, hdf5_use_swmr=True,
            hdf5_normalize_obs=False, filter_by_attribute="train", load_next_obs=load_next,
        )  # fmt: skip
        assert len(loaded) == 6
        np.testing.assert_array_equal(loaded[2]["actions"], demos[0].actions[2:4])
        assert ("next_obs" in loaded[2]) == load_next


def test_double_precision_actions_are_told(tmp_path, real_data, convert):
    path = tmp_path / "wide.hdf5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.full((3, 2), 0.1)
        demo["obs/state"] = np.zeros((3, 2))
        demo["obs/head"] = np.zeros((3, 4, 4, 3), np.uint8)
        demo["states"] = np.zeros((3, 9))
    _, done = convert(path, "out")
    assert any("rounded from float64 to float32" in note for note in done.notes)
    assert any("not converted: states" in note for note in done.notes)
    assert done.source_format == "robomimic"


def test_real_episodes_without_a_spec(real_data, convert, assert_equal):
    target, _ = convert(real_data / "bridge_v2_robomimic.hdf5", "real.hdf5")
    assert_equal(open_dataset(real_data / "bridge_v2_robomimic.hdf5"), open_dataset(target))


def test_a_failure_half_way_leaves_nothing(demos, convert, monkeypatch, tmp_path):
    original = demo_group.write_demo
    calls = []

    def fail_second(*arguments, **options):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(demo_group, "write_demo", fail_second)
    with pytest.raises(KeyboardInterrupt):
        convert(demos, "copy")
    assert [item.name for item in tmp_path.iterdir()] == ["demos"]


def test_nothing_is_overwritten_without_the_flag(demos, convert, assert_equal, tmp_path):
    target, _ = convert(demos, "copy")
    with pytest.raises(UserError, match="exists already; give another name, or --overwrite"):
        convert(demos, "copy")
    target.joinpath("episode_00001.hdf5").unlink()
    convert(demos, "copy", overwrite=True)
    assert_equal(demos, open_dataset(target))
    (target / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=r"holds thesis\.tex"):
        convert(demos, "copy", overwrite=True)
    assert (target / "thesis.tex").exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["copy", "demos"]


def test_a_partial_of_an_earlier_kill_is_replaced(demos, convert, assert_equal, tmp_path):
    (tmp_path / ".copy.partial").mkdir()
    (tmp_path / ".copy.partial" / "episode_00000.hdf5").write_bytes(b"half")
    target, _ = convert(demos, "copy")
    assert_equal(demos, open_dataset(target))


@pytest.mark.parametrize("name", ["demos", "demos/inside", "."])
def test_target_and_source_apart(demos, convert, name):
    with pytest.raises(UserError, match="lie within each other"):
        convert(demos, name)


def test_choices_without_effect_are_refused(demos, convert):
    with pytest.raises(UserError, match="--colour-order has no effect from ttm to ttm"):
        convert(demos, "copy", colour_order="rgb")
    with pytest.raises(UserError, match=r"one file; give a name that ends in \.hdf5"):
        convert(demos, "copy", "robomimic")
    with pytest.raises(UserError, match="--to is 'tape'; give one of ttm"):
        convert(demos, "copy", "tape")


def test_instruction_fills_in(tmp_path, record, convert):
    path = record(tmp_path / "one.hdf5", instruction="")
    target, _ = convert(path, "out", instruction="pick it up")
    assert open_dataset(target)[0].instruction == "pick it up"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("to", "name"), [("ttm", "copy"), ("ttm", "one.hdf5"), ("robomimic", "r.hdf5")]
)
def test_nothing_is_left_beside_what_was_written(demos, convert, tmp_path, to, name, overwrite):
    for _ in range(1 + overwrite):
        target, _ = convert(demos, f"out/{name}", to, overwrite=overwrite)
    assert list(target.parent.iterdir()) == [target]


def test_choices_select_and_change_what_is_converted(demos, convert, tmp_path):
    given = tmp_path / "spec.yaml"
    given.write_text("robot: renamed\nrate_hz: 4\ncameras: {wrist: {orientation: upside-down}}\n")
    target, _ = convert(demos, "chosen", choices=Choices(spec=given))
    copy = open_dataset(target)
    assert (copy.spec.robot, copy.spec.rate_hz) == ("renamed", 4.0)
    assert [camera.name for camera in copy.spec.cameras] == ["wrist"]
    assert np.array_equal(copy[0].frames("wrist"), demos[0].frames("wrist")[:, ::-1])
    target, _ = convert(demos, "head", choices=Choices(cameras=("head",)))
    assert [camera.name for camera in open_dataset(target).spec.cameras] == ["head"]


def test_choices_that_a_format_does_not_heed_are_refused(demos, convert):
    target, _ = convert(demos, "aloha", "aloha", colour_order="rgb")
    for choices, flag in (
        (Choices(cameras=("head",)), "--cameras"),
        (Choices(spec=Path("spec.yaml")), "--spec"),
    ):
        with pytest.raises(UserError, match=rf"{flag} has no effect from aloha to ttm"):
            convert(target, "back", colour_order="rgb", choices=choices)


@pytest.mark.parametrize("member", ["actions", "obs/joints", "timestamps", "executed_actions"])
def test_values_that_are_not_finite_are_refused(demos, convert, tmp_path, member):
    with h5py.File(demos[1].path, "a") as file:
        demo = file["data/demo_0"]
        values = np.array(demo[member] if member in demo else demo["actions"])
        values[2] = np.nan
        demo.pop(member, None)
        demo[member] = values
    for to in ("robomimic", "ttm"):
        with pytest.raises(UserError, match=rf"demo_0: {member.removeprefix('obs/')}\[2.* is NaN"):
            convert(demos, "out.hdf5", to)
    assert not (tmp_path / "out.hdf5").exists()


@pytest.mark.parametrize("key", ["rewards", "dones"])
def test_rewards_of_another_shape_are_refused_unread(demos, convert, key):
    """Of 200 GiB that a file declares, no value is read."""
    for number, values in enumerate([b"many", None]):
        with h5py.File(demos[0].path, "a") as file:
            file.pop(f"data/demo_0/{key}", None)
            if values is None:
                file.create_dataset(f"data/demo_0/{key}", (50 * 2**30,), "f4")
            else:
                file[f"data/demo_0/{key}"] = [values] * demos[0].num_samples
        with pytest.raises(
            UserError, match=rf"{key} has shape .* or no numbers, and the demo has 6"
        ):
            convert(demos, f"out_{number}")
