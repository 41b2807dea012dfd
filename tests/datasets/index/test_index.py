"""The index: a second opening reads no file, and whatever changes is read again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sqlite3

import h5py
import numpy as np
import pytest

from ttm.datasets import index as opening
from ttm.datasets.dataset import dataset_statistics, open_dataset, same_episodes
from ttm.datasets.description import Choices
from ttm.datasets.index import EpisodeIndex, default_path
from ttm.datasets.windows import WindowDataset, tick_weights
from ttm.policy.errors import UserError

FIRST = ["0.hdf5"] * 2
"""The first file is opened for its demos, and for the members of its `obs`."""

EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The database of these tests; data sets of any size are put into it."""
    monkeypatch.setattr(opening, "INDEX_FROM", 1)
    monkeypatch.setenv("TTM_INDEX", str(tmp_path / "cache" / "index.sqlite"))
    return tmp_path / "cache" / "index.sqlite"


@pytest.fixture
def folder(tmp_path, record):
    for i in range(3):
        facts = {"split": "valid" if i == 2 else "train", "task": f"task {i}", "success": i == 1}
        path = tmp_path / "data" / f"{i}.hdf5"
        record(path, ticks=4 + i, seed=i, embedding=EMBEDDING, **facts)
    return tmp_path / "data"


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that h5py opens, in their order."""
    names = []
    real = h5py.File

    def counting(path, *args, **options):
        names.append(os.path.basename(path))
        return real(path, *args, **options)

    monkeypatch.setattr(h5py, "File", counting)
    return names


def everything(episodes):
    """Return all vectors of a data set, by which two of them are compared."""
    statistics = dataset_statistics(episodes)
    found = [tick_weights(episodes, changes=3.0).numpy(), statistics.actions.std]
    for episode in episodes:
        found += [episode.actions, episode.executed_actions, episode.loss_weights]
        found += [episode.timestamps, episode.proprioception("joints")]
    return [array.tolist() for array in found]


def bare(folder):
    """Take the spec out of all files, as other programs write them."""
    for path in folder.iterdir():
        with h5py.File(path, "r+") as file:
            del file["data"].attrs["ttm_spec"]


def test_the_second_opening_opens_no_file(folder, opened, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TTM_INDEX", "none")
        plain = open_dataset(folder)
        expected = everything(plain)
    first = open_dataset(folder)
    assert everything(first) == expected
    opened.clear()
    second = open_dataset(folder)
    assert opened == FIRST
    opened.clear()
    assert list(second) == list(first) == list(plain)
    assert (second.spec, second.note) == (first.spec, first.note)
    assert everything(second) == expected
    assert same_episodes(second) == []
    assert opened == []
    assert second.filter("valid")[0].task == "task 2"
    assert WindowDataset(second, 3, cache="none").num_ticks == 15
    assert set(opened) == {"0.hdf5"}  # for the embedding of the instruction


def test_the_first_opening_opens_each_other_file_once(folder, opened):
    open_dataset(folder)
    assert sorted(opened) == ["0.hdf5", *FIRST, "0.hdf5", "1.hdf5", "2.hdf5"]


@pytest.mark.parametrize("same_size_and_time", [False, True])
def test_a_file_that_changed_is_read_again(folder, opened, same_size_and_time):
    before = everything(open_dataset(folder))
    path = folder / "1.hdf5"
    stat = path.stat()
    with h5py.File(path, "r+") as file:
        file["data/demo_0/actions"][2, 0] = 0.075
        file["data/demo_0"].attrs["success"] = False
    if same_size_and_time:  # the time of change, which nobody can set, tells
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    opened.clear()
    after = open_dataset(folder)
    assert sorted(opened) == [*FIRST, "1.hdf5"]
    assert after[1].success is False
    assert after[1].actions[2, 0] == np.float32(0.075)
    assert everything(after) != before


def test_files_that_are_added_or_gone(folder, opened, record, place):
    open_dataset(folder)
    record(folder / "3.hdf5", ticks=9, seed=9)
    (folder / "0.hdf5").unlink()
    opened.clear()
    assert [episode.num_samples for episode in open_dataset(folder)] == [5, 6, 9]
    assert sorted(opened) == ["1.hdf5", "1.hdf5", "3.hdf5"]
    with sqlite3.connect(place) as database:
        rows = database.execute("SELECT path FROM files ORDER BY path").fetchall()
    assert [os.path.basename(path) for (path,) in rows] == ["1.hdf5", "2.hdf5", "3.hdf5"]


def test_damage_is_told_at_every_opening(folder):
    with h5py.File(folder / "1.hdf5", "r+") as file:
        del file["data/demo_0/obs/joints"]
    for _ in range(2):
        with pytest.raises(UserError, match=r"1\.hdf5: data/demo_0/obs/joints is missing"):
            open_dataset(folder)
    open_dataset(folder / "0.hdf5")
    (folder / "0.hdf5").write_bytes(b"")
    with pytest.raises(UserError, match=r"0\.hdf5: it is empty"):
        open_dataset(folder / "0.hdf5")


def test_vectors_of_a_file_that_changes_after_its_opening_are_not_those_of_before(folder):
    open_dataset(folder)
    episodes = open_dataset(folder)
    old = episodes[0].actions
    with h5py.File(folder / "0.hdf5", "r+") as file:
        file["data/demo_0/actions"][...] = old + 0.001
    assert np.allclose(episodes[0].actions, old + 0.001)
    (folder / "0.hdf5").unlink()
    with pytest.raises(UserError, match=r"0\.hdf5 is not there"):
        episodes[0].actions  # noqa: B018


def test_several_demos_of_a_file_are_read_at_once(folder, tmp_path, opened):
    merged = tmp_path / "all.hdf5"
    with h5py.File(merged, "w") as target:
        for number in range(3):
            with h5py.File(folder / f"{number}.hdf5") as source:
                source.copy(source["data/demo_0"], target, f"data/demo_{number}")
                target["data"].attrs.update(dict(source["data"].attrs))
    episodes = open_dataset(merged)
    opened.clear()
    assert [len(episode.actions) for episode in episodes] == [4, 5, 6]
    assert opened == ["all.hdf5"]


def test_other_choices_are_another_reading(folder, opened):
    open_dataset(folder)
    chosen = open_dataset(folder, choices=Choices(cameras=("wrist",)))
    assert [camera.name for camera in chosen.spec.cameras] == ["wrist"]
    assert [camera.name for camera in chosen[2].spec.cameras] == ["wrist"]
    opened.clear()
    again = open_dataset(folder, choices=Choices(cameras=("wrist",)))
    assert list(again) == list(chosen)
    assert set(opened) <= {"0.hdf5"}  # whose other members are listed


def test_what_is_inferred_is_kept_until_a_file_or_a_choice_changes(folder, opened, tmp_path):
    bare(folder)
    first = open_dataset(folder)
    opened.clear()
    second = open_dataset(folder)
    assert opened == []
    assert (second.spec, second.members, second.note) == (first.spec, first.members, first.note)
    assert list(second) == list(first)
    chosen = tmp_path / "spec.yaml"
    for rate in (7.0, 8.0):
        chosen.write_text(f"rate_hz: {rate}")
        assert open_dataset(folder, choices=Choices(spec=chosen)).spec.rate_hz == rate
    with h5py.File(folder / "2.hdf5", "r+") as file:
        file["data/demo_0/actions"][:, 3] = 0.5  # no gripper's command any more
    assert [part.kind for part in open_dataset(folder).spec.actions] == ["continuous"]


def test_what_is_not_used_for_long_is_removed(folder, place):
    bare(folder)
    for episode in open_dataset(folder):
        assert len(episode.actions) == episode.num_samples  # puts its vectors into the index

    def kept() -> list[int]:
        with sqlite3.connect(place) as database:
            tables = ("files", "descriptions", "vectors")
            return [len(database.execute(f"SELECT * FROM {table}").fetchall()) for table in tables]

    def forget_the_use() -> None:
        with sqlite3.connect(place) as database:
            database.executescript("UPDATE files SET used = 0; UPDATE descriptions SET used = 0")

    forget_the_use()
    open_dataset(folder)
    EpisodeIndex(place).store({})
    assert kept() == [3, 1, 3], "the last opening has used all of it"
    forget_the_use()
    EpisodeIndex(place).store({})
    assert kept() == [0, 0, 0]


def test_a_forked_process_does_not_close_the_connection_of_the_other(folder, place):
    """SQLite's locks would be those of nobody then."""
    index = open_dataset(folder)[0].kept._index
    before = index._open
    index._process = -1  # as in a process that was forked
    assert index.description("none") is None
    assert index._open is not before
    assert index._inherited == [before], "without a reference, Python would close it"


def test_small_data_sets_are_not_indexed(folder, place, monkeypatch):
    monkeypatch.setattr(opening, "INDEX_FROM", 4)
    assert open_dataset(folder)[0].kept is None
    bare(folder)
    assert open_dataset(folder)[0].kept is None
    assert not place.exists()


def test_data_from_outside_are_never_indexed(folder, place):
    open_dataset(folder, choices=Choices(allow_external=True))
    assert not place.exists()


def test_a_damaged_index_is_replaced(folder, place, opened):
    place.parent.mkdir()
    place.write_bytes(b"no database" * 100)
    assert len(open_dataset(folder)) == 3
    open_dataset(folder)
    opened.clear()
    assert len(open_dataset(folder)) == 3
    assert opened == FIRST


def test_without_a_place_for_the_index_data_open_all_the_same(folder, monkeypatch, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("TTM_INDEX", str(blocked / "index.sqlite"))
    for _ in range(2):
        assert len(everything(open_dataset(folder))) == 17


def test_the_index_lies_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("TTM_INDEX")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "ttm" / "episodes.sqlite"
    monkeypatch.setenv("TTM_INDEX", "none")
    assert default_path() is None


def test_other_processes_use_the_same_index(folder, opened):
    everything(open_dataset(folder))
    episodes = open_dataset(folder)
    opened.clear()
    assert pickle.loads(pickle.dumps(episodes[1])).actions.tolist() == episodes[1].actions.tolist()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put((episodes[1].actions.tolist(), opened)))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    assert queue.get() == (episodes[1].actions.tolist(), [])


def test_an_index_of_another_version_is_made_anew(folder, place):
    open_dataset(folder)
    with sqlite3.connect(place) as database:
        database.execute("PRAGMA user_version = 99")
    assert EpisodeIndex(place).records({}) == {}
    assert len(open_dataset(folder)) == 3
    shutil.rmtree(place.parent)
    assert len(open_dataset(folder)) == 3
