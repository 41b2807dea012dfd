"""Opening single episodes by path and name, and what cannot be opened."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeReader, open_dataset
from ttm.policy import UserError


@pytest.fixture
def several(tmp_path):
    """A file of three demos without a spec; the second is damaged."""
    path = tmp_path / "several.hdf5"
    with h5py.File(path, "w") as file:
        for i in range(3):
            demo = file.create_group(f"data/demo_{i}")
            demo["actions"] = np.full((4, 2), i / 3, np.float32)
            demo["obs/state"] = np.zeros((3 if i == 1 else 4, 5), np.float32)
    return path


def test_the_only_episode_of_a_file_needs_no_name(tmp_path, record, spec):
    path = record(tmp_path / "a.hdf5", ticks=5)
    episode = EpisodeReader.open(str(path))
    assert (episode.path, episode.name, episode.spec, episode.num_samples) == (
        path,
        "demo_0",
        spec,
        5,
    )
    assert episode == EpisodeReader.open(path, "demo_0") == open_dataset(path)[0]


def test_one_of_several_episodes_is_opened_by_its_name(several):
    episode = EpisodeReader.open(several, "demo_2")
    np.testing.assert_array_equal(episode.actions, np.full((4, 2), 2 / 3, np.float32))
    assert [vector.name for vector in episode.spec.proprioception] == ["state"]


def test_a_damaged_episode_is_told_and_others_can_be_read(several):
    with pytest.raises(UserError, match="obs/state has 3 ticks, actions 4"):
        EpisodeReader.open(several, "demo_1")
    assert EpisodeReader.open(several, "demo_0").num_samples == 4


def test_without_a_name_several_episodes_are_an_error(several):
    with pytest.raises(
        UserError, match=r"3 episodes; give the name of one \(demo_0, demo_1, demo_2"
    ):
        EpisodeReader.open(several)


def test_an_unknown_name_is_told(several):
    with pytest.raises(UserError, match="no episode 'demo_9'; it has: demo_0, demo_1, demo_2"):
        EpisodeReader.open(several, "demo_9")


def test_paths_without_an_episode_are_told(tmp_path):
    with pytest.raises(UserError, match="use open_dataset for it"):
        EpisodeReader.open(tmp_path)
    with pytest.raises(UserError, match=r"a\.hdf5 is not there"):
        EpisodeReader.open(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["weights"] = [1.0]
    with pytest.raises(UserError, match=r"b\.hdf5 has no episode"):
        EpisodeReader.open(tmp_path / "b.hdf5")
    (tmp_path / "c.hdf5").write_bytes(b"not HDF5")
    with pytest.raises(UserError, match=r"c\.hdf5: it is not an HDF5 file"):
        EpisodeReader.open(tmp_path / "c.hdf5")
