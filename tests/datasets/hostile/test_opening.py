"""Files that are no whole HDF5 files, and places that are no files: each gets one line that helps."""

from __future__ import annotations

import gzip
import os
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets.hdf5 import why_unreadable


def bytes_of(path: Path, change) -> None:
    path.write_bytes(bytes(change(bytearray(path.read_bytes()))))


def cut(kept: float):
    return lambda path: bytes_of(path, lambda data: data[: int(len(data) * kept)])


def with_byte(place: int, value: int):
    def change(path: Path) -> None:
        bytes_of(path, lambda data: data[:place] + bytes([value]) + data[place + 1 :])

    return change


def replaced(content: bytes):
    return lambda path: path.write_bytes(content)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo.hdf5", b"x")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked_to(target: str):
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


def without(key: str):
    def change(path: Path) -> None:
        with h5py.File(path, "a") as file:
            del file[key]

    return change


def dataset_for_group(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"

CASES = {
    "empty": (replaced(b""), "it is empty (0 bytes)"),
    "cut to a tenth": (cut(0.1), "cut short"),
    "cut to a half": (cut(0.5), "cut short"),
    "last byte missing": (lambda path: bytes_of(path, lambda data: data[:-1]), "cut short"),
    "signature alone": (replaced(b"\x89HDF\r\n\x1a\n"), "HDF5 cannot open it"),
    "wrong signature": (with_byte(1, 0), "it is not an HDF5 file"),
    "wrong superblock": (with_byte(8, 0xEE), "HDF5 cannot open it"),
    "text": (replaced(b"hello there, this is text"), "it is not an HDF5 file"),
    "noise": (replaced(np.random.default_rng(0).bytes(5000)), "it is not an HDF5 file"),
    "zip": (zipped, "a zip archive"),
    "gzip": (replaced(gzip.compress(b"x" * 100)), "a gzip archive"),
    "Git LFS pointer": (replaced(LFS), "git lfs pull"),
    "web page": (replaced(b"<!DOCTYPE html><html></html>"), "a web page"),
    "SQLite": (replaced(b"SQLite format 3\x00" + bytes(90)), "an SQLite database"),
    "MCAP": (replaced(b"\x89MCAP0\r\n" + bytes(90)), "an MCAP file"),
    "pipe": (pipe, "a pipe"),
    "folder": (folder, "this folder has no *.hdf5"),
    "link to itself": (linked_to("a.hdf5"), "no place that can be read"),
    "link to nothing": (linked_to("missing.hdf5"), "a symbolic link to a file that is not there"),
    "no group data": (without("data"), "no group 'data'"),
    "data is a dataset": (dataset_for_group, "no group 'data'"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by_folder", [False, True], ids=["file", "folder"])
def test_what_is_no_whole_file_is_told_in_one_line(small_file, answer, case, by_folder) -> None:
    change, words = CASES[case]
    path = small_file()
    change(path)
    found = answer(path.parent if by_folder else path)
    assert found.fails
    assert found.refusal is not None
    assert words in found.refusal
    assert words in found.faults


@pytest.mark.parametrize("seed", range(12))
def test_bytes_changed_at_random_never_end_in_a_traceback(small_file, answer, seed) -> None:
    """Whatever HDF5 makes of them: correct data, or one line."""
    rng = np.random.default_rng(seed)
    path = small_file()
    data = bytearray(path.read_bytes())
    for place in rng.integers(48, len(data) - 64, 6).tolist():
        data[place : place + 16] = rng.bytes(16)
    path.write_bytes(data)
    answer(path)


def test_a_file_that_is_being_written_is_told(small_file, answer, tmp_path) -> None:
    with h5py.File(tmp_path / "w.hdf5", "w", libver="latest") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))
        file.flush()
        shutil.copy(tmp_path / "w.hdf5", tmp_path / "killed.hdf5")
    found = answer(tmp_path / "killed.hdf5")
    assert "is being written by another program, or its writer was killed" in found.refusal


def test_a_file_without_permission_is_told(tmp_path, monkeypatch) -> None:
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    what, remedy = why_unreadable(tmp_path / "a.hdf5", OSError())
    assert (what, "chmod" in remedy) == ("you may not read it", True)


def test_a_name_that_cannot_be_printed_is_told(small_file, answer) -> None:
    path = small_file()
    path.rename(path.parent / os.fsdecode(b"caf\xe9.hdf5"))
    assert "or is not UTF-8" in answer(path.parent).refusal


def test_a_name_that_is_too_long_is_told(answer, tmp_path) -> None:
    assert "give an HDF5 file" in answer(tmp_path / ("x" * 300)).refusal
    assert "glob matches no file" in answer(tmp_path / ("x" * 300 + "*")).refusal
