"""The cache of what files say: a second opening reads no file, and whatever changes is read again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import time

import h5py
import numpy as np
import pytest
from safetensors.numpy import save

from ttm.datasets import WindowDataset, dataset_statistics, open_dataset, opening, tick_weights
from ttm.datasets.dataset import same_episodes
from ttm.datasets.description import Choices
from ttm.datasets.opening import cache_folder
from ttm.policy import UserError

EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The folder of the cache in these tests; data sets of any size are put into it."""
    monkeypatch.setattr(opening, "KEPT_FROM", 1)
    monkeypatch.setenv("TTM_INDEX", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    assert opened == []
    assert list(second) == list(first) == list(plain)
    assert (second.spec, second.note) == (first.spec, first.note)
    assert everything(second) == expected
    assert same_episodes(second) == []
    assert opened == []
    assert second.filter("valid")[0].task == "task 2"
    assert WindowDataset(second, 3, cache="none").num_ticks == 15
    assert set(opened) == {"0.hdf5"}  # for the embedding of the instruction


def test_the_first_opening_opens_each_other_file_for_its_facts_and_for_its_vectors(folder, opened):
    open_dataset(folder)
    assert [opened.count(f"{i}.hdf5") for i in (1, 2)] == [2, 2]


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
    assert "1.hdf5" in opened
    assert after[1].success is False
    assert after[1].actions[2, 0] == np.float32(0.075)
    assert everything(after) != before


def test_files_that_are_added_or_gone(folder, opened, record, place):
    open_dataset(folder)
    record(folder / "3.hdf5", ticks=9, seed=9)
    (folder / "0.hdf5").unlink()
    opened.clear()
    assert [episode.num_samples for episode in open_dataset(folder)] == [5, 6, 9]
    assert "3.hdf5" in opened
    assert len(list(place.iterdir())) == 1, "the earlier state is gone"
    opened.clear()
    assert [len(episode.actions) for episode in open_dataset(folder)] == [5, 6, 9]
    assert opened == []


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


def test_what_is_not_used_for_long_is_removed(folder, place, tmp_path, record):
    open_dataset(folder)
    (kept,) = place.iterdir()
    long_ago = time.time() - opening.UNUSED_S - 10
    os.utime(kept, (long_ago, long_ago))
    open_dataset(folder)
    assert kept.stat().st_mtime > long_ago, "it was used"
    (place / "other").write_text("no file of the cache")
    for path in place.iterdir():
        os.utime(path, (long_ago, long_ago))
    record(tmp_path / "other.hdf5")
    open_dataset(tmp_path / "other.hdf5")
    assert not kept.exists()
    assert (place / "other").exists()


def test_small_data_sets_are_not_indexed(folder, place, monkeypatch):
    monkeypatch.setattr(opening, "KEPT_FROM", 4)
    assert open_dataset(folder)[0].kept is None
    bare(folder)
    assert open_dataset(folder)[0].kept is None
    assert not place.exists()


def test_data_from_outside_are_never_indexed(folder, place):
    open_dataset(folder, choices=Choices(allow_external=True))
    assert not place.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"no facts" * 100, save({"facts": np.frombuffer(b"{}", np.uint8)}), b"\xff" * 9],
)
def test_a_damaged_file_of_the_cache_is_replaced(folder, place, opened, content):
    open_dataset(folder)
    (kept,) = place.iterdir()
    kept.write_bytes(content)
    expected = everything(open_dataset(folder))
    opened.clear()
    assert everything(open_dataset(folder)) == expected
    assert opened == []


def test_vectors_that_are_gone_from_the_cache_are_read_from_the_files(folder, place):
    open_dataset(folder)
    episodes = open_dataset(folder)
    expected = everything(episodes)
    shutil.rmtree(place)
    assert everything(episodes) == expected


def test_without_a_place_for_the_index_data_open_all_the_same(folder, monkeypatch, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("TTM_INDEX", str(blocked / "cache"))
    for _ in range(2):
        assert len(everything(open_dataset(folder))) == 17


def test_the_cache_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("TTM_INDEX")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ttm" / "episodes"
    monkeypatch.setenv("TTM_INDEX", "none")
    assert cache_folder() is None


def test_other_processes_use_the_same_cache(folder, opened):
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


def test_facts_of_another_version_are_not_read(folder, opened, monkeypatch):
    open_dataset(folder)
    monkeypatch.setattr(opening, "VERSION", 99)
    opened.clear()
    assert len(open_dataset(folder)) == 3
    assert "2.hdf5" in opened
