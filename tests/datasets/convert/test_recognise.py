"""What is not converted is named, with the next command; strange files end in one line."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from ttm.datasets.formats.table import recognise
from ttm.policy import UserError
from ttm.training.cli import main


def test_rlds_is_named_with_the_next_command(tmp_path):
    (tmp_path / "rlds" / "1.0.0").mkdir(parents=True)
    (tmp_path / "rlds" / "1.0.0" / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match=r"RLDS.*not read as it is;.*ttm data convert"):
        recognise(tmp_path / "rlds")


def test_robosuites_states_are_named_with_the_next_command(tmp_path):
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        file["data/demo_1/states"] = np.zeros((3, 5))
        file["data/demo_1/actions"] = np.zeros((3, 7))
    with pytest.raises(UserError, match="dataset_states_to_obs"):
        recognise(tmp_path / "demo.hdf5")


def test_a_name_that_no_file_can_have_is_told(tmp_path):
    with pytest.raises(UserError, match="give an HDF5 file"):
        recognise(tmp_path / ("x" * 300))


def test_unknown_files_are_named(tmp_path, capsys):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["pixels"] = np.zeros(3)
    with pytest.raises(UserError, match="has pixels at its top, which is none of the known"):
        recognise(tmp_path / "other.hdf5")
    (tmp_path / "torn.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n torn")
    for name in ("torn.hdf5", "nowhere", "other.hdf5"):
        assert main(["data", "convert", str(tmp_path / name), str(tmp_path / "out")]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("ttm: error: ")
        assert errors.count("\n") == 1


def test_what_no_reader_explains_is_one_line_too(tmp_path, record, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise KeyError("no such member")

    source = record(tmp_path / "demos" / "episode_00000.hdf5")
    monkeypatch.setattr("ttm.datasets.formats.hdf5.read_source", fail)
    assert main(["data", "convert", str(source), str(tmp_path / "out")]) == 2
    assert "cannot be converted; as ttm it is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("marks", "name"),
    [({"ep_meta": "{}"}, "robomimic"), ({"ttm_spec": "{}"}, "ttm"), ({}, "robomimic")],
)
def test_hdf5_files(tmp_path, marks, name):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 7))
        file["data/demo_0/obs/x"] = np.zeros((3, 7))
        place = file["data"] if "ttm_spec" in marks else file["data/demo_0"]
        place.attrs.update(marks)
    assert recognise(tmp_path / "a.hdf5") == name
