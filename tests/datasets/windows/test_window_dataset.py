"""Training windows: which ones there are, what they hold, and how they are read."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ttm.datasets import EpisodeWriter, WindowDataset, open_dataset
from ttm.datasets import windows as frame_store
from ttm.policy import UserError

EMBEDDING = np.linspace(0, 1, 384, dtype=np.float32)


@pytest.fixture
def episodes(tmp_path, record):
    """Three episodes of 6, 3 and 10 ticks."""
    for i, ticks in enumerate((6, 3, 10)):
        record(
            tmp_path / f"{i}.hdf5",
            ticks=ticks,
            seed=i,
            embedding=EMBEDDING + i,
            instruction=f"task {i}",
        )
    return open_dataset(tmp_path)


def counts(windows):
    """Return how often each tick of the data set is valid, over all windows."""
    batch = windows.gather(list(range(len(windows))))
    return torch.bincount(
        batch["dataset_tick"][batch["valid"]], minlength=windows.num_ticks
    ).tolist()


@pytest.mark.parametrize("name", ["actions", "obs/joints"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_file_and_tick(episodes, tmp_path, name, value):
    with h5py.File(tmp_path / "2.hdf5", "r+") as file:
        file["data/demo_0"][name][4, 0] = value
    with pytest.raises(
        UserError, match=rf"2\.hdf5: demo_0: {name} is NaN or infinite at tick 4; .*ttm data check"
    ):
        WindowDataset(open_dataset(tmp_path), 4)


def test_windows_without_padding_lie_in_their_episode(episodes):
    windows = WindowDataset(episodes, 4, pad="none")
    assert len(windows) == 3 + 1 + 7
    assert counts(windows) == [1, 2, 3, 3, 2, 1, *[1, 1, 1], *[1, 2, 3, 4, 4, 4, 4, 3, 2, 1]]


def test_first_ticks_come_as_often_as_others(episodes):
    windows = WindowDataset(episodes, 4, pad="start")
    assert counts(windows)[:6] == [4, 4, 4, 3, 2, 1]
    assert counts(windows)[9:] == [4, 4, 4, 4, 4, 4, 4, 3, 2, 1]


def test_with_padding_at_both_ends_every_tick_comes_equally_often(episodes):
    assert counts(WindowDataset(episodes, 4, pad="both")) == [4] * 19


def test_a_window_holds_what_was_recorded(episodes, observation):
    windows = WindowDataset(episodes, 4, pad="none")
    item = windows[3 + 1 + 2]  # the third window of the third episode
    assert (int(item["episode"]), item["tick"].tolist()) == (2, [2, 3, 4, 5])
    np.testing.assert_array_equal(item["actions"], episodes[2].actions[2:6])
    np.testing.assert_array_equal(item["previous_action"], episodes[2].actions[1:5])
    np.testing.assert_array_equal(item["language"], EMBEDDING + 2)
    assert not item["episode_start"].any()
    assert item["valid"].all()
    for i, tick in enumerate(range(2, 6)):
        np.testing.assert_array_equal(item["images"]["head"][i], observation(tick, seed=2)["head"])
        np.testing.assert_array_equal(
            item["proprioception"]["joints"][i], observation(tick, seed=2)["joints"]
        )


def test_an_episodes_first_tick_is_marked_and_has_no_previous_action(episodes):
    batch = WindowDataset(episodes, 4, pad="start").gather([0, 3])
    assert batch["valid"].tolist() == [[True, False, False, False], [True] * 4]
    assert batch["episode_start"].tolist() == [[True, False, False, False]] * 2
    assert batch["previous_action_valid"].tolist() == [[False, True, True, True]] * 2
    assert not batch["previous_action"][:, 0].any()


def test_the_previous_action_is_the_one_that_was_executed(tmp_path, spec, observation, action):
    """Where a policy drove and the expert labelled, the previous action is the policy's own."""

    def executed(tick):
        return action(tick) + np.float32(0.01)

    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        for tick in range(4):
            writer.append(
                observation(tick), action(tick), timestamp_s=tick, executed_action=executed(tick)
            )
        writer.finish(instruction="go", embedding=EMBEDDING)
    batch = WindowDataset(open_dataset(tmp_path), 4).gather([3])
    np.testing.assert_array_equal(batch["actions"][0], [action(tick) for tick in range(4)])
    np.testing.assert_array_equal(
        batch["previous_action"][0, 1:], [executed(tick) for tick in range(3)]
    )


def test_a_short_episode_is_padded_at_its_end(episodes):
    batch = WindowDataset(episodes, 4, pad="none").gather([3])
    assert batch["valid"].tolist() == [[True, True, True, False]]
    assert batch["tick"].tolist() == [[0, 1, 2, 2]]


def test_a_window_comes_with_the_ticks_before_it(episodes):
    windows = WindowDataset(episodes, 4, pad="none")
    place = windows.places([3 + 1 + 5])  # ticks 5 to 8 of the third episode
    batch = windows.gather_at(place, burn_in=3)
    assert batch["tick"].tolist() == [[2, 3, 4, 5, 6, 7, 8]]
    assert batch["valid"].tolist() == [[False] * 3 + [True] * 4]
    assert not batch["episode_start"].any()
    alone = windows.gather_at(place)
    for key in ("actions", "previous_action", "dataset_tick"):
        assert torch.equal(batch[key][:, 3:], alone[key])


def test_before_an_episode_its_first_tick_stands_again_and_again(episodes):
    windows = WindowDataset(episodes, 4, pad="none")
    batch = windows.gather_at(torch.tensor([[2, 1, 4], [2, -2, 4]]), burn_in=3)
    assert batch["tick"].tolist() == [[0, 0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 0, 1]]
    assert batch["episode_start"].tolist() == [[True] * 3 + [False] * 4, [True] * 6 + [False]]
    assert batch["valid"].tolist() == [[False] * 3 + [True] * 4, [False] * 5 + [True] * 2]
    assert not batch["previous_action_valid"][0, :3].any()
    assert not batch["previous_action"][0, :3].any()


def test_frames_read_from_files_equal_cached_ones(episodes):
    everything = list(range(16))
    cached = WindowDataset(episodes, 4, cache="ram", resize_to={"head": (6, 8)}).gather(everything)
    read = WindowDataset(episodes, 4, cache="none", resize_to={"head": (6, 8)}).gather(everything)
    assert cached["images"]["head"].shape == (16, 4, 6, 8, 3)
    for camera in ("head", "wrist"):
        assert torch.equal(cached["images"][camera], read["images"][camera])


def test_resizing_averages_areas_and_shows_in_the_spec(episodes):
    windows = WindowDataset(episodes, 4, resize_to={"head": (6, 8)})
    assert (windows.spec.camera("head").height, windows.spec.camera("head").width) == (6, 8)
    assert windows.spec.camera("wrist") == episodes.spec.camera("wrist")
    first = episodes[0].frames("head", 0, 1)[0].reshape(6, 2, 8, 2, 3).mean(axis=(1, 3))
    assert np.abs(windows[0]["images"]["head"][0].numpy() - first).max() <= 1
    with pytest.raises(UserError, match="camera 'tail' is not in this spec"):
        WindowDataset(episodes, 4, resize_to={"tail": (6, 8)})


def test_transition_weights_dwell_on_the_gripper(episodes):
    windows = WindowDataset(episodes, 4)
    weights = windows.binary_transition_weights(5.0)  # the gripper closes at tick 3
    assert weights[:, :3].eq(1).all()
    assert weights[:6, 3].tolist() == [1, 1, 5, 5, 5, 1]
    assert weights[6:9, 3].tolist() == [1, 1, 1]
    batch = windows.gather([5])
    assert weights[batch["dataset_tick"]].shape == batch["actions"].shape


def test_a_data_loader_collates_the_same_batch(episodes):
    windows = WindowDataset(episodes, 4)
    loaded = next(iter(DataLoader(windows, batch_size=3)))
    gathered = windows.gather([0, 1, 2])
    assert torch.equal(loaded["images"]["wrist"], gathered["images"]["wrist"])
    assert torch.equal(loaded["previous_action"], gathered["previous_action"])


def test_impossible_windows_are_told(episodes):
    with pytest.raises(UserError, match="window is 0"):
        WindowDataset(episodes, 0)
    with pytest.raises(UserError, match="no episode to make windows of"):
        WindowDataset(episodes[:0], 4)


@pytest.mark.parametrize("copies", [1, 3])
def test_frames_that_do_not_fit_are_read_from_the_files(episodes, monkeypatch, copies):
    """Twice the size of the frames must be free for them to be kept, and once if they must be."""
    needed = copies * 19 * (12 * 16 + 8 * 8) * 3
    monkeypatch.setattr(frame_store, "available_memory_bytes", lambda: 2 * needed)
    assert WindowDataset(episodes, 4, copies=copies).frames.in_memory
    monkeypatch.setattr(frame_store, "available_memory_bytes", lambda: 2 * needed - 2)
    assert not WindowDataset(episodes, 4, copies=copies).frames.in_memory
    monkeypatch.setattr(frame_store, "available_memory_bytes", lambda: needed - 1)
    with pytest.raises(UserError, match=r"the frames need .* GiB of memory, and .* GiB are free"):
        WindowDataset(episodes, 4, cache="ram", copies=copies)
