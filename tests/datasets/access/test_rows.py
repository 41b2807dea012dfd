"""Rows of datasets whose chunks hold a whole episode: each chunk is unpacked once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset, open_dataset
from ttm.datasets import hdf5 as rows_module
from ttm.datasets.description import Choices
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.hdf5 import read_rows
from ttm.datasets.tools.convert import convert_dataset

TICKS = 96


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch) -> None:
    monkeypatch.setattr(rows_module, "_kept", {})


@pytest.fixture
def unpacked(monkeypatch) -> list[tuple[str, int]]:
    """Name and number of rows of each read of a dataset's rows."""
    reads = []
    real = rows_module._values

    def counting(dataset: Any, start: int, stop: int) -> Any:
        reads.append((dataset.name, stop - start))
        return real(dataset, start, stop)

    monkeypatch.setattr(rows_module, "_values", counting)
    return reads


def file_of(path: Path, seed: int = 0, **options: Any) -> np.ndarray:
    """Write one demo with a chunk for the whole episode, and return its frames."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (TICKS, 8, 8, 3), dtype=np.uint8)
    options = {"chunks": frames.shape, "compression": "gzip", **options}
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo.attrs.update(num_samples=TICKS, language_instruction="lift")
        demo["actions"] = rng.normal(size=(TICKS, 3))
        demo.create_dataset("obs/front", data=frames, **options)
    return frames


def test_a_chunk_of_a_whole_episode_is_unpacked_once(tmp_path, unpacked) -> None:
    frames = file_of(tmp_path / "a.hdf5")
    (episode,) = open_dataset(tmp_path / "a.hdf5")
    found = [episode.frames("front", tick, tick + 16) for tick in range(0, TICKS, 16)]
    np.testing.assert_array_equal(np.concatenate(found), frames)
    assert unpacked == [("/data/demo_0/obs/front", TICKS)]


def test_check_and_convert_unpack_it_once(tmp_path, unpacked) -> None:
    frames = file_of(tmp_path / "a.hdf5")
    check_dataset(tmp_path / "a.hdf5", Choices())
    convert_dataset(tmp_path / "a.hdf5", tmp_path / "out")
    assert unpacked == [("/data/demo_0/obs/front", TICKS)]
    np.testing.assert_array_equal(open_dataset(tmp_path / "out")[0].frames("front"), frames)


def test_convert_unpacks_that_of_aloha_once(tmp_path, unpacked) -> None:
    frames = file_of(tmp_path / "a.hdf5")
    with (
        h5py.File(tmp_path / "episode_0.hdf5", "w") as file,
        h5py.File(tmp_path / "a.hdf5") as ours,
    ):
        file["action"] = ours["data/demo_0/actions"][()]
        ours.copy("data/demo_0/obs/front", file.create_group("observations/images"), "top")
    options = ConvertOptions(colour_order="rgb")
    convert_dataset(tmp_path / "episode_0.hdf5", tmp_path / "out", options=options)
    assert unpacked == [("/observations/images/top", TICKS)]
    np.testing.assert_array_equal(open_dataset(tmp_path / "out")[0].frames("top"), frames)


def test_a_file_that_was_replaced_is_read_again(tmp_path) -> None:
    path = tmp_path / "a.hdf5"
    old, new = file_of(path, 1), file_of(tmp_path / "b.hdf5", 2)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(read_rows(file["data/demo_0/obs/front"], 3, 9), old[3:9])
    shutil.move(tmp_path / "b.hdf5", path)
    with h5py.File(path) as file:
        rows = read_rows(file["data/demo_0/obs/front"], 3, 9)
        np.testing.assert_array_equal(rows, new[3:9])
        rows[:] = 0  # the reader's own
        np.testing.assert_array_equal(read_rows(file["data/demo_0/obs/front"], 3, 9), new[3:9])


def test_what_is_kept_stays_below_its_bound(tmp_path, monkeypatch, unpacked) -> None:
    frames = [file_of(tmp_path / f"{seed}.hdf5", seed) for seed in range(3)]
    monkeypatch.setattr(rows_module, "KEPT_BYTES", 2 * frames[0].nbytes)
    for _ in range(2):
        for seed in (0, 1, 2):
            with h5py.File(tmp_path / f"{seed}.hdf5") as file:
                rows = read_rows(file["data/demo_0/obs/front"], 90, 200)
                np.testing.assert_array_equal(rows, frames[seed][90:])
            assert len(rows_module._kept) <= 2
    monkeypatch.setattr(rows_module, "KEPT_BYTES", frames[0].nbytes - 1)
    unpacked.clear()
    with h5py.File(tmp_path / "0.hdf5") as file:
        np.testing.assert_array_equal(
            read_rows(file["data/demo_0/obs/front"], 4, 6), frames[0][4:6]
        )
    assert unpacked == [("/data/demo_0/obs/front", 2)]


@pytest.mark.parametrize(
    "options",
    [{"chunks": (1, 8, 8, 3)}, {"compression": None}, {"chunks": None, "compression": None}],
)
def test_rows_that_can_be_read_alone_are(tmp_path, unpacked, options) -> None:
    frames = file_of(tmp_path / "a.hdf5", **options)
    with h5py.File(tmp_path / "a.hdf5") as file:
        np.testing.assert_array_equal(read_rows(file["data/demo_0/obs/front"], 5, 7), frames[5:7])
    assert unpacked == [("/data/demo_0/obs/front", 2)]
