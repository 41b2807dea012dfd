"""Merging, splitting and filtering: which episodes go where, and that they stay whole."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset, open_dataset
from ttm.datasets.tools.arrange import DataSplitCommand, Wanted, merge_episodes, split_episodes
from ttm.policy import UserError
from ttm.training.cli import main


@pytest.fixture
def folders(tmp_path, record) -> tuple[Path, Path]:
    """Two data sets of two and one episodes; the second holds a failure for validation."""
    record(tmp_path / "a" / "episode_00000.hdf5", 6, success=True, task="pick")
    record(tmp_path / "a" / "episode_00001.hdf5", 4, seed=1, success=None, task="wave hands")
    record(tmp_path / "b" / "episode_00000.hdf5", 3, seed=2, success=False, split="valid")
    return tmp_path / "a", tmp_path / "b"


def bare(path: Path, actions: np.ndarray, **attributes: str) -> Path:
    """A file of another program: no spec, and a member that we do not read."""
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = actions
        demo["states"] = np.arange(len(actions))
        demo["obs/head"] = np.zeros((len(actions), 4, 4, 3), np.uint8)
        file["data"].attrs.update(attributes)
    return path


def test_merge_keeps_every_member_and_fact(folders, tmp_path):
    out = tmp_path / "all.hdf5"
    assert merge_episodes(folders, out) == (3, 3)
    merged = open_dataset(out)
    originals = [*open_dataset(folders[0]), *open_dataset(folders[1])]
    for mine, other in zip(originals, merged, strict=True):
        np.testing.assert_array_equal(mine.actions, other.actions)
        np.testing.assert_array_equal(mine.frames("wrist"), other.frames("wrist"))
        np.testing.assert_array_equal(mine.timestamps, other.timestamps)
        for fact in ("spec", "instruction", "task", "success", "seed", "masks"):
            assert getattr(mine, fact) == getattr(other, fact)
    assert check_dataset(out).num_errors == 0
    with h5py.File(out) as file:
        assert file["data"].attrs["total"] == 13


def test_merge_of_foreign_files_keeps_what_we_do_not_read(tmp_path):
    closed, moving = np.zeros((3, 1)), np.array([[0.0], [1.0]])
    first = bare(tmp_path / "a.hdf5", closed, problem_info='{"language_instruction": "open"}')
    second = bare(tmp_path / "b.hdf5", moving, problem_info='{"language_instruction": "shut"}')
    merge_episodes([first, second], tmp_path / "out.hdf5")
    assert [each.instruction for each in open_dataset(tmp_path / "out.hdf5")] == ["open", "shut"]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["data/demo_1/states"][()].tolist() == [0, 1]
        assert file["data/demo_1/actions"].dtype == np.float64


def test_merge_refuses_what_differs(folders, tmp_path):
    ours = bare(tmp_path / "a.hdf5", np.zeros((3, 4)))
    with pytest.raises(UserError, match="carries no spec, others do"):
        merge_episodes([folders[0], ours], tmp_path / "out.hdf5")
    flipped = bare(tmp_path / "b.hdf5", np.zeros((3, 4)), macros_image_convention="opengl")
    with pytest.raises(UserError, match="differ in the attribute 'macros_image_convention'"):
        merge_episodes([ours, flipped], tmp_path / "out.hdf5")
    longer = bare(tmp_path / "c.hdf5", np.zeros((3, 5)))
    with pytest.raises(UserError, match="was made for actions"):
        merge_episodes([ours, longer], tmp_path / "out.hdf5")
    assert not (tmp_path / "out.hdf5").exists()
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize(
    ("wanted", "lengths"),
    [
        (Wanted(), [6, 4, 3]),
        (Wanted(success="true"), [6]),
        (Wanted(success="false"), [3]),
        (Wanted(success="unknown"), [4]),
        (Wanted(task="wave hands"), [4]),
        (Wanted(instruction="mug"), [6, 4, 3]),
        (Wanted(mask="valid"), [3]),
        (Wanted(min_ticks=4), [6, 4]),
        (Wanted(max_ticks=4), [4, 3]),
    ],
)
def test_filter(folders, tmp_path, wanted, lengths):
    merge_episodes(folders, tmp_path / "all.hdf5")
    counts = merge_episodes([tmp_path / "all.hdf5"], tmp_path / "out.hdf5", wanted)
    assert counts == (len(lengths), 3)
    assert [each.num_samples for each in open_dataset(tmp_path / "out.hdf5")] == lengths


def test_filter_that_keeps_nothing_says_so(folders, tmp_path):
    with pytest.raises(UserError, match="none of the 2 episodes"):
        merge_episodes([folders[0]], tmp_path / "out.hdf5", Wanted(task="dance"))
    with pytest.raises(UserError, match="--min-ticks is 0"):
        merge_episodes([folders[0]], tmp_path / "out.hdf5", Wanted(min_ticks=0))


def test_split_holds_out_a_portion_and_keeps_copies_together(tmp_path, record):
    for number in range(10):
        record(tmp_path / "a" / f"episode_{number:05d}.hdf5", 3 + number % 5, seed=number % 5)
    counts = split_episodes(
        DataSplitCommand(str(tmp_path / "a"), tmp_path / "out", valid=0.2, seed=3)
    )
    assert counts == {"train.hdf5": 8, "valid.hdf5": 2}
    held_out = open_dataset(tmp_path / "out" / "valid.hdf5")
    seen = open_dataset(tmp_path / "out" / "train.hdf5")
    assert {each.seed for each in held_out}.isdisjoint({each.seed for each in seen})
    assert all(each.masks == {"valid"} for each in held_out)
    assert len(open_dataset(tmp_path / "out").filter("train")) == 8
    again = split_episodes(
        DataSplitCommand(str(tmp_path / "a"), tmp_path / "again", valid=0.2, seed=3)
    )
    assert again == counts
    first = [each.seed for each in open_dataset(tmp_path / "again" / "valid.hdf5")]
    assert first == [each.seed for each in held_out]


def test_the_commands_run(folders, tmp_path, capsys):
    out = tmp_path / "all.hdf5"
    assert main(["data", "merge", *map(str, folders), "--out", str(out)]) == 0
    assert main(["data", "filter", str(out), "--success", "true", "--out", f"{out}.hdf5"]) == 0
    assert main(["data", "split", str(out), "--out", str(tmp_path / "parts")]) == 0
    assert "all.hdf5: 3 episodes" in capsys.readouterr().out
    assert main(["data", "merge", str(folders[0]), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_nothing_is_written_into_what_is_read(folders):
    """The next reader would find the episodes twice; overwriting would leave only some of them."""
    folder = folders[0]
    before = sorted(folder.iterdir())
    with pytest.raises(UserError, match="lie within each other"):
        merge_episodes(folders, folder / "all.hdf5")
    with pytest.raises(UserError, match="lie within each other"):
        merge_episodes([before[0]], before[0], Wanted(success="true"), overwrite=True)
    for out in (folder, folder / "split"):
        with pytest.raises(UserError, match="lie within each other"):
            split_episodes(DataSplitCommand(str(folder), out, overwrite=True))
    assert sorted(folder.iterdir()) == before
