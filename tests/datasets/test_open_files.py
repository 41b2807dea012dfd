"""Files that stay open for many reads."""

from __future__ import annotations

import multiprocessing
import pickle

import h5py
import pytest

from ttm.datasets import EpisodeReader, episode_file
from ttm.datasets.episode_file import OpenFiles
from ttm.policy import UserError


@pytest.fixture
def paths(tmp_path, record):
    return [record(tmp_path / f"{i}.hdf5", seed=i) for i in range(4)]


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that h5py opens, in their order."""
    names = []
    real = h5py.File

    def counting(path, *args, **options):
        names.append(path.name)
        return real(path, *args, **options)

    monkeypatch.setattr(h5py, "File", counting)
    return names


def seeds(files, paths):
    found = []
    for path in paths:
        with files.open(path, "/") as file:
            found.append(int(file["data/demo_0"].attrs["seed"]))
    return found


def test_the_files_that_were_read_last_stay_open(paths, opened):
    files = OpenFiles(most=2)
    assert seeds(files, [paths[i] for i in (0, 1, 0, 1, 2, 0, 2)]) == [0, 1, 0, 1, 2, 0, 2]
    assert opened == ["0.hdf5", "1.hdf5", "2.hdf5", "0.hdf5"]


def test_no_more_files_are_open_than_allowed(paths):
    files = OpenFiles(most=2)
    handles = []
    for path in paths:
        with files.open(path, "/") as file:
            handles.append(file)
    assert [bool(handle) for handle in handles] == [False, False, True, True]
    files.close()
    assert not any(handles)


def test_the_metadata_of_an_open_file_stay_few(paths):
    files = OpenFiles()
    with files.open(paths[0], "/") as root:
        assert root.file.id.get_mdc_config().max_size == episode_file.METADATA_BYTES
        assert root.file.id.get_mdc_size()[0] == episode_file.METADATA_BYTES
    assert seeds(files, paths) == [0, 1, 2, 3]


def test_frames_come_from_the_open_file(paths, opened):
    episode, files = EpisodeReader.open(paths[0]), OpenFiles()
    opened.clear()
    frames = [episode.frames("head", tick, tick + 1, files=files) for tick in range(6)]
    assert len(opened) == 1
    assert all((frame == episode.frames("head", i, i + 1)).all() for i, frame in enumerate(frames))


def test_a_damaged_file_is_told_with_its_path(paths):
    files = OpenFiles()
    with (
        pytest.raises(UserError, match=r"0\.hdf5: HDF5 cannot read it"),
        files.open(paths[0], "/") as file,
    ):
        file["data/demo_7"]
    paths[1].write_bytes(b"no HDF5")
    with pytest.raises(UserError, match=r"1\.hdf5: it is not an HDF5 file"):
        seeds(files, [paths[1]])


def test_a_copy_in_another_process_opens_its_own(paths):
    files = OpenFiles()
    seeds(files, paths)
    assert seeds(pickle.loads(pickle.dumps(files)), paths) == [0, 1, 2, 3]
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def read():
        before = files._files
        queue.put(seeds(files, paths) if before else None)
        queue.put(files._files is before)

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    process.join(300)
    assert process.exitcode == 0
    assert queue.get() == [0, 1, 2, 3]
    assert queue.get() is False


def test_datasets_are_looked_up_once_and_not_kept_without_end(paths, monkeypatch):
    monkeypatch.setattr(episode_file, "MOST_MEMBERS", 2)
    files, seen = OpenFiles(), []
    for key in ("actions", "obs/head", "actions", "obs/joints", "actions"):
        with files.open(paths[0], f"data/demo_0/{key}") as dataset:
            assert dataset.name == f"/data/demo_0/{key}"
            seen.append(dataset)
        assert len(files._members[paths[0]]) <= 2
    assert seen[2] is seen[0]
    assert seen[4] is not seen[0]
    missing = files.open(paths[0], "data/demo_0/nothing")
    with pytest.raises(UserError, match=r"0\.hdf5: HDF5 cannot read it"), missing:
        pass
