"""Who writes in a folder, and what is left over there."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from ttm.datasets.hdf5 import is_written_in, remove_leftovers
from ttm.datasets.tools import edit as demo_copies
from ttm.datasets.tools.convert import write_whole
from ttm.policy import UserError
from ttm.policy.files import publish_partial


def test_a_recording_on_another_computer_is_not_left_over(tmp_path):
    """On a network drive, there is only HDF5's lock on the file, as here."""
    partial = tmp_path / ".episode_00000.hdf5.partial"
    with h5py.File(partial, "w"):
        assert is_written_in(tmp_path)
        assert remove_leftovers(tmp_path) == []
    assert not is_written_in(tmp_path)
    assert remove_leftovers(tmp_path) == [partial]


def test_of_a_folder_that_is_gone_nobody_can_tell(tmp_path):
    assert is_written_in(tmp_path / "none")
    assert remove_leftovers(tmp_path / "none") == []


def test_a_conversion_is_not_left_over(tmp_path):
    def write(partial: Path) -> None:
        partial.touch()
        assert remove_leftovers(tmp_path) == []

    target = tmp_path / "episode_00000.hdf5"
    write_whole(target, write, contents=(), overwrite=False)
    assert target.exists()


def test_a_target_below_a_file_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*below"):
        write_whole(tmp_path / "file" / "below", Path.touch, contents=(), overwrite=False)


def test_an_edit_is_not_left_over(tmp_path, record, monkeypatch):
    def publish(path: Path) -> None:
        assert remove_leftovers(tmp_path) == []
        publish_partial(path)

    monkeypatch.setattr("ttm.policy.files.publish_partial", publish)
    with demo_copies.changed_in_place(record(tmp_path / "episode_00000.hdf5")) as file:
        file["data/demo_0"].attrs["task"] = "wave"
    with h5py.File(tmp_path / "episode_00000.hdf5") as file:
        assert file["data/demo_0"].attrs["task"] == "wave"
