"""`ttm data check`: each kind of damage is named with its place and remedy, and clean data pass."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset
from ttm.datasets.tools.check import DataCheckCommand
from ttm.policy import UserError


@pytest.fixture
def damage(tmp_path, record):
    """damage(change) records an episode, applies `change` to its demo and returns the report."""

    def report_on(change, ticks=12, **options):
        path = record(tmp_path / "a.hdf5", ticks=ticks, **options)
        with h5py.File(path, "a") as file:
            change(file["data/demo_0"])
        return check_dataset(path)

    return report_on


def put(key, tick, value):
    """Return a change that sets one tick of a dataset."""

    def change(demo):
        demo[key][tick] = value

    return change


def replace(key, value):
    """Return a change that replaces a whole dataset, or deletes it if `value` is None."""

    def change(demo):
        del demo[key]
        if value is not None:
            demo[key] = value

    return change


def test_a_clean_data_set_passes(tmp_path, record, capsys):
    record(tmp_path / "a.hdf5")
    record(tmp_path / "b.hdf5", jpeg_quality=90)
    assert DataCheckCommand(str(tmp_path)).run() == 0
    assert "0 faults, 0 warnings in 2 episodes (12 ticks) of 2 files" in capsys.readouterr().out


def test_the_real_episodes_pass(real_data):
    report = check_dataset(real_data)
    assert report.num_errors == 0
    # The second file holds the episodes of the first in another encoding.
    assert {fault.what.split(" of ")[0] for fault in report.faults} == {"it is a copy"}
    assert report.num_warnings == 25
    assert (report.num_files, report.num_episodes, report.num_ticks) == (2, 50, 500)


TIMES = 0.2 * np.arange(12)


@pytest.mark.parametrize(
    ("change", "tick", "message"),
    [
        (put("actions", 4, np.nan), 4, "actions[0, 1, 2, 3] is NaN or infinite at tick 4"),
        (
            put("obs/joints", slice(2, 4), [0, np.inf, 0]),
            2,
            "obs/joints[1] is NaN or infinite at ticks 2 to 3",
        ),
        (
            put("actions", 5, [0, 0.3, 0, 1]),
            5,
            "action 'arm' reaches 0.3 at tick 5, outside -0.1 to 0.1 m",
        ),
        (
            put("actions", 5, [0, 0, 0, 0.4]),
            5,
            "action 'gripper' reaches 0.4 at tick 5, outside 0 or 1",
        ),
        (put("timestamps", 6, 100.95), 6, "timestamps run backwards by 0.050 s at tick 6"),
        (put("timestamps", 6, 101.0), 6, "timestamps repeat at tick 6"),
        (put("timestamps", 6, np.nan), 6, "timestamps are NaN or infinite at tick 6"),
        (
            replace("timestamps", np.where(TIMES > 1, TIMES + 0.4, TIMES)),
            6,
            "gap of 0.600 s before tick 6",
        ),
        (
            replace("obs/joints", np.zeros((9, 3), np.float32)),
            9,
            "obs/joints has 9 ticks, actions 12",
        ),
        (replace("rewards", np.zeros(3)), 3, "rewards has 3 ticks, actions 12"),
        (replace("obs/head", None), None, "obs/head is missing"),
        (replace("actions", None), None, "actions is missing"),
        (replace("actions", 1.0), None, "actions is not a dataset of one row for each tick"),
        (replace("timestamps", 1.0), None, "timestamps is not a dataset of one row for each tick"),
        (
            replace("obs/head", np.zeros((12, 4, 4, 3), np.uint8)),
            None,
            "obs/head has shape (12, 4, 4, 3), not (T, 12",
        ),
        (
            lambda demo: demo.attrs.update(num_samples=7),
            None,
            "attribute num_samples says 7, there are 12 actions",
        ),
    ],
)
def test_a_fault_is_named_with_its_place_and_remedy(damage, change, tick, message):
    report = damage(change)
    (fault,) = [fault for fault in report.faults if not fault.is_warning]
    assert message in fault.what
    assert (fault.path.name, fault.demo, fault.tick) == ("a.hdf5", "demo_0", tick)
    assert fault.remedy


def hold_frame(first, last):
    """Return a change in which the head camera repeats a frame from tick `first` to `last`."""

    def change(demo):
        for tick in range(first, last + 1):
            demo["obs/head"][tick] = demo["obs/head"][first - 1]

    return change


def test_a_stuck_camera_is_a_fault(damage):
    (fault,) = damage(hold_frame(4, 6)).faults
    assert not fault.is_warning
    assert (
        fault.what == "obs/head repeats the frame before it at ticks 4 to 6 while the robot moves"
    )
    assert fault.tick == 4


def test_a_stuck_camera_is_found_among_jpegs(damage):
    (fault,) = damage(hold_frame(4, 6), jpeg_quality=90).faults
    assert (fault.is_warning, fault.tick) == (False, 4)


def test_single_repeats_of_a_camera_are_one_warning(damage):
    def slow(demo):
        for tick in (4, 7, 8):
            hold_frame(tick, tick)(demo)

    (fault,) = damage(slow).faults
    assert (fault.is_warning, fault.tick) == (True, 4)
    assert fault.what == "obs/head repeats the frame before it at 3 of 12 ticks"


@pytest.mark.parametrize("variation", ["light=1 frames=2", "latency=1"])
def test_frames_that_a_simulation_repeats_on_purpose_are_no_fault(damage, variation):
    def frozen(demo):
        hold_frame(4, 6)(demo)
        demo.attrs["variation"] = variation

    assert not damage(frozen).faults


def test_a_stuck_camera_is_a_fault_under_another_variation(damage):
    def stuck(demo):
        hold_frame(4, 6)(demo)
        demo.attrs["variation"] = "light=1"

    (fault,) = damage(stuck).faults
    assert not fault.is_warning


def test_a_still_scene_before_a_robot_at_rest_is_a_warning(damage):
    def stand_still(demo):
        hold_frame(4, 9)(demo)
        demo["obs/joints"][3:10] = demo["obs/joints"][3]

    (fault,) = damage(stand_still).faults
    assert fault.is_warning


def test_a_jpeg_that_does_not_decode_is_named(damage):
    (fault,) = damage(put("obs/wrist", 2, np.arange(50, dtype=np.uint8)), jpeg_quality=90).faults
    assert fault.tick == 2
    assert "obs/wrist at tick 2: the image does not decode" in fault.what


def test_a_rate_other_than_the_specs_is_a_warning(damage):
    (fault,) = damage(replace("timestamps", 0.1 * np.arange(12))).faults
    assert fault.is_warning
    assert "recorded at 10.00 Hz, the spec says 5 Hz" in fault.what


def test_every_fault_is_named_not_only_the_first(damage):
    def several(demo):
        put("actions", 1, np.nan)(demo)
        put("timestamps", 6, 101.0)(demo)
        hold_frame(8, 11)(demo)

    assert [fault.tick for fault in damage(several).faults if not fault.is_warning] == [1, 6, 8]


@pytest.mark.parametrize(
    ("kept", "what"),
    [(0, "it is empty (0 bytes)"), (100, "it is cut short"), (-500, "it is cut short")],
)
def test_truncated_files_are_named_and_the_others_still_checked(
    tmp_path, record, capsys, kept, what
):
    path = record(tmp_path / "a.hdf5")
    path.write_bytes(path.read_bytes()[:kept])
    bad = record(tmp_path / "b.hdf5")
    with h5py.File(bad, "a") as file:
        file["data/demo_0/actions"][2] = np.nan
    assert DataCheckCommand(str(tmp_path)).run() == 1
    shown = capsys.readouterr().out
    assert f"fault   file: {what}" in shown
    assert "fault   demo_0 tick 2: actions" in shown
    assert "2 faults" in shown


def test_specs_and_masks_that_do_not_fit_are_named(tmp_path, record, spec):
    record(tmp_path / "a.hdf5")
    with h5py.File(record(tmp_path / "b.hdf5"), "a") as file:
        file["data"].attrs["ttm_spec"] = spec.to_json().replace("test_arm", "other_arm")
    with h5py.File(record(tmp_path / "c.hdf5"), "a") as file:
        file["mask/valid"] = np.array([b"demo_0", b"demo_5"])
    with h5py.File(record(tmp_path / "d.hdf5"), "a") as file:
        del file["data"].attrs["ttm_spec"]
    found = [(fault.path.name, fault.what) for fault in check_dataset(tmp_path).faults]
    assert found[0][0] == "b.hdf5"
    assert "another spec" in found[0][1]
    assert "other_arm" in found[0][1]
    assert found[1:] == [
        ("c.hdf5", "mask/valid names it, but it is not there"),
        ("c.hdf5", "it is in mask/train and in mask/valid"),
        ("d.hdf5", "it carries no ttm_spec, others do"),
    ]


def test_an_unfinished_recording_is_a_warning(tmp_path, record):
    record(tmp_path / "a.hdf5")
    (tmp_path / ".b.hdf5.partial").write_bytes(b"")
    report = check_dataset(tmp_path)
    assert (report.num_errors, report.num_warnings) == (0, 1)
    assert "never finished" in report.faults[0].what
    assert "start a recorder" in report.faults[0].remedy


def test_a_broken_first_demo_does_not_hide_the_others(tmp_path):
    """Without a stored spec, it is inferred from the demos that allow it."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for i in range(3):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = 5
            demo["actions"] = np.random.default_rng(i).normal(size=(5, 3))
            demo["obs/state"] = np.random.default_rng(i).normal(size=(5, 2))
        del file["data/demo_0/obs"]
        file["data/demo_2/obs/state"][3] = np.nan
    found = [(fault.demo, fault.what) for fault in check_dataset(tmp_path).faults]
    assert found == [
        ("demo_0", "obs/state is missing"),
        ("demo_2", "obs/state[0, 1] is NaN or infinite at tick 3"),
    ]


def test_a_place_without_data_is_unusable_input(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        DataCheckCommand(str(tmp_path / "no")).run()


def test_a_file_without_demos_is_a_fault(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["weights"] = [1.0]
    assert check_dataset(tmp_path).num_errors > 0


def test_what_leaves_nothing_to_train_on_is_a_fault(tmp_path, record):
    for number in range(3):
        record(tmp_path / f"{number}.hdf5", seed=number, split="valid")
    (fault,) = check_dataset(tmp_path).faults
    assert fault.what == "every episode is held out, so there is nothing to train on"
    record(tmp_path / "3.hdf5", seed=3, split="train")
    assert check_dataset(tmp_path).faults == ()
    with h5py.File(tmp_path / "3.hdf5", "a") as file:
        file["data/demo_0/loss_weights"] = np.zeros(6, np.float32)
    (fault,) = check_dataset(tmp_path).faults
    assert fault.what == "no tick to train on has a weight above 0 in loss_weights"
    shutil.copy(tmp_path / "0.hdf5", tmp_path / "3.hdf5")
    with h5py.File(tmp_path / "3.hdf5", "a") as file:
        file.move("mask/valid", "mask/train")
    errors = [fault.what for fault in check_dataset(tmp_path).faults if not fault.is_warning]
    assert errors == ["all episodes are held out for validation"]


def test_actions_that_never_move_are_a_fault(tmp_path, record):
    for number in range(3):
        path = record(tmp_path / f"{number}.hdf5", seed=number)
        with h5py.File(path, "a") as file:
            file["data/demo_0/actions"][:] = [0.1, 0, 0, number == 2]
    (fault,) = check_dataset(tmp_path).faults
    assert fault.what.startswith("the action is the same at every tick to train on")
    with h5py.File(tmp_path / "0.hdf5", "a") as file:
        file["data/demo_0/actions"][1, 1] = 0.01
    assert check_dataset(tmp_path).faults == ()


@pytest.mark.parametrize(
    ("key", "shape"), [("executed_actions", (12, 4)), ("loss_weights", (12,)), ("actions", (12, 4))]
)
def test_numbers_that_overflow_a_training_are_named(damage, key, shape):
    values = np.zeros(shape)
    values[3] = 1e18
    change = (
        replace(key, values)
        if key == "actions"
        else lambda demo: demo.create_dataset(key, data=values)
    )
    found = [fault.what for fault in damage(change).faults]
    assert any(
        what.startswith(key) and what.endswith("is beyond 1e+15 at tick 3") for what in found
    )


def test_executed_actions_that_are_not_finite_are_named(damage):
    values = np.zeros((12, 4), np.float32)
    values[3] = np.nan
    (fault,) = damage(lambda demo: demo.create_dataset("executed_actions", data=values)).faults
    assert fault.what.startswith("executed_actions[0, 1, 2, 3] is NaN or infinite at tick 3")
