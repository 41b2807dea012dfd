"""Trimming, labelling and deleting: what changes, what stays, and that all of it can be undone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeReader, check_dataset, open_dataset
from ttm.datasets.tools import edit
from ttm.datasets.tools import edit as demo_copies
from ttm.datasets.tools.arrange import merge_episodes
from ttm.datasets.tools.edit import (
    FOLDER,
    DataDeleteCommand,
    DataLabelCommand,
    History,
    Labels,
    delete_episodes,
    label_episodes,
    trim_episode,
    undo_edit,
)
from ttm.policy import UserError
from ttm.training.cli import main


@pytest.fixture
def folder(tmp_path, record) -> Path:
    """Two episodes of 6 and 4 ticks."""
    record(tmp_path / "demos" / "episode_00000.hdf5", 6, success=True)
    record(tmp_path / "demos" / "episode_00001.hdf5", 4, seed=1, jpeg_quality=90)
    return tmp_path / "demos"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.hdf5"))}


@pytest.mark.parametrize("name", ["episode_00000.hdf5", "episode_00001.hdf5"])
def test_trim_cuts_all_that_has_a_row_for_each_tick(folder, name):
    path = folder / name
    with h5py.File(path, "r+") as file:
        demo, length = file["data/demo_0"], len(file["data/demo_0/actions"])
        demo["states"] = np.arange(2 * length).reshape(length, 2)
        demo["obs/head"].attrs["note"] = "kept"
        demo["empty"] = h5py.Empty(np.float32)
        stored = demo["obs/wrist"].id.get_create_plist().get_nfilters()
    before, old = EpisodeReader.open(path), contents(folder)
    arrays = {name: getattr(before, name) for name in ("actions", "timestamps")}
    frames = before.frames("head", 1, 3)
    assert trim_episode(path, 1, 3) == 2
    after = EpisodeReader.open(path)
    assert after.num_samples == 2
    np.testing.assert_array_equal(after.frames("head"), frames)
    np.testing.assert_array_equal(after.actions, arrays["actions"][1:3])
    np.testing.assert_array_equal(after.timestamps, arrays["timestamps"][1:3])
    assert (after.instruction, after.success, after.masks) == (
        before.instruction, before.success, before.masks,
    )  # fmt: skip
    with h5py.File(path) as file:
        assert file["data/demo_0/states"][()].tolist() == [[2, 3], [4, 5]]
        assert file["data"].attrs["total"] == file["data/demo_0"].attrs["num_samples"] == 2
        assert file["data/demo_0/obs/head"].attrs["note"] == "kept"
        assert file["data/demo_0/empty"].shape is None
        assert file["data/demo_0/obs/wrist"].id.get_create_plist().get_nfilters() == stored
    assert check_dataset(folder).num_errors == 0
    undo_edit(folder)
    assert contents(folder) == old


def test_trim_keeps_an_embedding_as_long_as_the_episode(folder):
    with h5py.File(folder / "episode_00000.hdf5", "r+") as file:
        file["data/demo_0/language_embedding"] = np.arange(6, dtype=np.float32)
    trim_episode(folder / "episode_00000.hdf5", 2, 5)
    embedding = EpisodeReader.open(folder / "episode_00000.hdf5").language_embedding
    assert embedding is not None
    assert embedding.tolist() == [0, 1, 2, 3, 4, 5]


def test_trim_of_one_of_several_leaves_the_others(folder, tmp_path):
    merge_episodes([folder], tmp_path / "all.hdf5")
    before = open_dataset(tmp_path / "all.hdf5")
    actions = [episode.actions for episode in before]
    assert trim_episode(tmp_path / "all.hdf5", 0, 3, "demo_1") == 3
    after = open_dataset(tmp_path / "all.hdf5")
    np.testing.assert_array_equal(after[0].actions, actions[0])
    np.testing.assert_array_equal(after[1].actions, actions[1][:3])
    with h5py.File(tmp_path / "all.hdf5") as file:
        assert file["data"].attrs["total"] == 9


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (0, None, "these are all 6 ticks"),
        (3, 3, "give --start and --stop among them"),
        (2, 7, "give --start and --stop among them"),
    ],
)
def test_trim_refuses_what_leaves_nothing_or_all(folder, start, stop, message):
    old = contents(folder)
    with pytest.raises(UserError, match=message):
        trim_episode(folder / "episode_00000.hdf5", start, stop)
    assert contents(folder) == old


def test_label_writes_what_is_given_alone(folder):
    with h5py.File(folder / "episode_00000.hdf5", "r+") as file:
        file["data/demo_0/language_embedding"] = np.ones(3, np.float32)
    old = contents(folder)
    assert label_episodes(folder, Labels(success="false"))[0] == 2
    first, second = open_dataset(folder)
    assert (first.success, second.success) == (False, False)
    assert first.language_embedding is not None
    assert label_episodes(folder, Labels(instruction="wave twice", success="unknown"))[0] == 2
    first, second = open_dataset(folder)
    assert [(each.instruction, each.success) for each in (first, second)] == [
        ("wave twice", None), ("wave twice", None),
    ]  # fmt: skip
    assert first.language_embedding is None, "it was that of the old instruction"
    for _ in range(2):
        undo_edit(folder)
    assert contents(folder) == old
    with pytest.raises(UserError, match="nothing to undo"):
        undo_edit(folder)


@pytest.mark.parametrize("value", [3.5, np.array(["pick", "up"], dtype="S"), "x" * 60000])
@pytest.mark.parametrize("demo", [None, "demo_1"])
def test_label_mends_an_instruction_that_is_no_text(folder, tmp_path, value, demo):
    """Such an episode cannot be opened, nor can the file with it."""
    path = tmp_path / "all.hdf5"
    merge_episodes([folder], path)
    with h5py.File(path, "r+") as file:
        file["data/demo_1"].attrs["language_instruction"] = value
    with pytest.raises(UserError, match="language_instruction"):
        open_dataset(path)
    label_episodes(path, Labels(instruction="wave"), demo)
    assert open_dataset(path)[1].instruction == "wave"
    with pytest.raises(UserError, match="no episode 'demo_7'; it has: demo_0, demo_1"):
        label_episodes(path, Labels(instruction="wave"), "demo_7")


def test_an_episode_that_cannot_be_opened_can_be_taken_out(folder, tmp_path):
    """No mask leaves it out: a file is opened with all its episodes."""
    path = tmp_path / "all.hdf5"
    merge_episodes([folder], path)
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/actions"]
        file.require_group("mask").pop("train", None)
        file["mask/train"] = np.array([b"demo_0"])
    with pytest.raises(UserError, match="no mask helps"):
        open_dataset(path)
    (fault,) = [fault for fault in check_dataset(path).faults if not fault.is_warning]
    assert "take this episode out" in fault.remedy
    delete_episodes([path], "demo_1")
    assert [episode.name for episode in open_dataset(path)] == ["demo_0"]


def test_label_of_one_demo_leaves_the_others(folder, tmp_path):
    merge_episodes([folder], tmp_path / "all.hdf5")
    assert label_episodes(tmp_path / "all.hdf5", Labels(task="wave"), "demo_1")[0] == 1
    assert [each.task for each in open_dataset(tmp_path / "all.hdf5")] == ["", "wave"]


def test_a_failure_in_the_middle_puts_all_back(folder, monkeypatch):
    old, real = contents(folder), edit._write_labels

    def fail_at_the_second(demo, labels):
        if demo.file.filename.endswith("episode_00001.hdf5.partial"):
            raise OSError(28, "No space left on device")
        real(demo, labels)

    monkeypatch.setattr(edit, "_write_labels", fail_at_the_second)
    with pytest.raises(UserError, match="No space left on device"):
        label_episodes(folder, Labels(task="new"))
    assert contents(folder) == old
    assert not list(folder.glob(".*.partial"))
    assert History(folder).count() == 0


def test_without_space_nothing_is_changed(folder, monkeypatch):
    old = contents(folder)
    monkeypatch.setattr(demo_copies, "MARGIN_BYTES", 2**62)
    for change in (
        lambda: trim_episode(folder / "episode_00000.hdf5", 0, 3),
        lambda: label_episodes(folder, Labels(task="new")),
    ):
        with pytest.raises(UserError, match="MiB are free; make space"):
            change()
    assert contents(folder) == old
    assert History(folder).count() == 0


def test_a_kill_in_the_middle_is_undone(folder):
    """A killed edit leaves its entry without the states of the files after it."""
    old = contents(folder)
    history, files = History(folder), [folder / name for name in old]
    history.change("delete", files[:1], Path.unlink)
    notes = folder / FOLDER / "000000" / "edit.json"
    notes.write_text(json.dumps(json.loads(notes.read_text()) | {"after": None}))
    assert undo_edit(folder).files[0].name == "episode_00000.hdf5"
    assert contents(folder) == old


def test_an_undo_that_was_killed_goes_on(folder):
    """It had put back the first of two files."""
    old = contents(folder)
    label_episodes(folder, Labels(task="new"))
    (folder / FOLDER / "000000" / "0").replace(folder / "episode_00000.hdf5")
    undo_edit(folder)
    assert contents(folder) == old


def test_a_kill_while_old_versions_are_deleted_leaves_them_whole_or_none(folder, monkeypatch):
    for name in contents(folder):
        delete_episodes([folder / name])

    def kill(path, ignore_errors=False):
        if path.exists():
            (path / "edit.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            History(folder).forget()
    assert History(folder).count() == 1
    assert undo_edit(folder).files[0].name == "episode_00001.hdf5"


def test_delete_and_undo(folder, tmp_path):
    old = contents(folder)
    (folder / "episode_00001.hdf5").write_bytes(b"damaged")
    assert delete_episodes([folder / "episode_00001.hdf5"] * 2)[0] == 1
    assert sorted(contents(folder)) == ["episode_00000.hdf5"]
    assert len(open_dataset(folder)) == 1
    undo_edit(folder)
    assert (folder / "episode_00001.hdf5").read_bytes() == b"damaged"
    assert contents(folder)["episode_00000.hdf5"] == old["episode_00000.hdf5"]
    with pytest.raises(UserError, match="is no episode file"):
        delete_episodes([folder])


def test_delete_one_demo_of_a_file(folder, tmp_path):
    merge_episodes([folder], tmp_path / "all.hdf5")
    kept = open_dataset(tmp_path / "all.hdf5")[1].actions
    assert delete_episodes([tmp_path / "all.hdf5"], "demo_0")[0] == 1
    (left,) = open_dataset(tmp_path / "all.hdf5")
    np.testing.assert_array_equal(left.actions, kept)
    assert (left.name, left.masks) == ("demo_1", {"train"})
    assert check_dataset(tmp_path / "all.hdf5").num_errors == 0
    assert delete_episodes([tmp_path / "all.hdf5"], "demo_1")[0] == 1, "the last one takes the file"
    assert not (tmp_path / "all.hdf5").exists()


def test_undo_does_not_overwrite_what_was_recorded_since(folder, record):
    path = folder / "episode_00001.hdf5"
    delete_episodes([path])
    record(path, 3)
    with pytest.raises(UserError, match="was recorded again since the edit"):
        undo_edit(folder)
    path.rename(folder / "episode_00002.hdf5")
    undo_edit(folder)
    assert len(open_dataset(folder)) == 3
    label_episodes(path, Labels(task="a"))
    path.touch()
    with pytest.raises(UserError, match="was changed again since the edit"):
        undo_edit(folder)


def test_undo_stays_in_its_folder(folder, tmp_path):
    """A downloaded folder might say that its files belong elsewhere."""
    (tmp_path / "precious.hdf5").write_bytes(b"mine")
    delete_episodes([folder / "episode_00001.hdf5"])
    notes = folder / FOLDER / "000000" / "edit.json"
    data = json.loads(notes.read_text()) | {"files": ["../precious.hdf5"], "after": None}
    notes.write_text(json.dumps(data))
    with pytest.raises(UserError, match="its files lie elsewhere"):
        undo_edit(folder)
    assert (tmp_path / "precious.hdf5").read_bytes() == b"mine"


def test_links_are_deleted_where_they_lie(folder, tmp_path, record):
    record(tmp_path / "other" / "a.hdf5", 3)
    links = [folder / "link_0.hdf5", folder / "link_1.hdf5"]
    links[0].symlink_to(tmp_path / "other" / "a.hdf5")
    links[1].symlink_to(folder / "episode_00000.hdf5")
    assert delete_episodes(links)[1] == folder
    assert sorted(contents(folder)) == ["episode_00000.hdf5", "episode_00001.hdf5"]
    undo_edit(folder)
    assert [len(open_dataset(link)) for link in links] == [1, 1]


def test_the_undo_that_is_printed_undoes(folder, record, capsys):
    """Of files in several folders, the history lies in the folder that they share."""
    files = [folder / name / "episode_00000.hdf5" for name in ("monday", "tuesday")]
    for file in files:
        record(file, 3)
    for edit_them in (
        DataDeleteCommand(tuple(files)),
        DataLabelCommand(str(folder / "*" / "*.hdf5"), Labels(task="new")),
    ):
        edit_them.run()
        command = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("to undo: "))
        assert main(command[1:]) == 0
        assert [open_dataset(file)[0].task for file in files] == ["", ""]


def test_the_commands(folder, capsys):
    first, second = (str(folder / name) for name in contents(folder))
    assert main(["data", "trim", first, "--stop", "5"]) == 0
    assert main(["data", "label", first, "--success", "false"]) == 0
    assert main(["data", "delete", second]) == 0
    assert "undo: ttm data undo" in capsys.readouterr().out
    assert main(["data", "undo", first]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"{second}: undid delete", "2 more edits can be undone",
    ]  # fmt: skip
    assert main(["data", "undo", str(folder), "--forget"]) == 0
    assert "2 edits are deleted" in capsys.readouterr().out
    assert main(["data", "undo", str(folder)]) == 2
    assert main(["data", "label", first]) == 2
    assert main(["data", "delete"]) == 2
    assert main(["data", "label", str(folder), "--demo", "demo_0", "--task", "a"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("ttm: error:") == errors.count("\n") == 4
