"""Loss weights of ticks: as recorded, at changes of the action, after a stand-still."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeDataset, EpisodeWriter, check_dataset, open_dataset, tick_weights
from ttm.datasets.windows import stand_stills, starts_after_standing
from ttm.policy import UserError

STANDS_UNTIL = 5
"""The joints of the recorded episodes stand still for so many ticks, and move from then on."""


@pytest.fixture
def write(tmp_path, spec, observation):
    """write(name, weights) records a stand-still of 5 ticks and a motion of 5, with the weights."""

    def record(name, weights=(1.0,) * 10):
        with EpisodeWriter(tmp_path / name, spec) as writer:
            for tick, weight in enumerate(weights):
                joints = np.array([max(0, tick - STANDS_UNTIL), 0, 0], np.float32)
                action = [0.01 * (tick % 2), 0, 0, float(tick >= 7)]
                seen = {**observation(tick), "joints": joints}
                writer.append(seen, action, timestamp_s=0.2 * tick, loss_weight=weight)
            return writer.finish(instruction="wait", embedding=np.ones(384))

    return record


def test_recorded_weights_are_read_back_and_are_1_elsewhere(write, tmp_path):
    weighted = write("a.hdf5", (0.5,) * 5 + (3.0,) * 5)
    plain = write("b.hdf5", (1.0,) * 9)  # another length, so that it is no copy
    with h5py.File(weighted) as one, h5py.File(plain) as other:
        assert one["data/demo_0/loss_weights"].dtype == np.float32
        assert "loss_weights" not in other["data/demo_0"]
    episodes = open_dataset(tmp_path)
    assert tick_weights(episodes).tolist() == [0.5] * 5 + [3.0] * 5 + [1.0] * 9
    assert check_dataset(tmp_path).num_errors == 0


@pytest.mark.parametrize("weight", [-1.0, np.nan])
def test_an_impossible_weight_is_refused_and_the_tick_with_it(
    tmp_path, spec, observation, action, weight
):
    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        with pytest.raises(UserError, match=f"loss_weight is {weight}; give a finite number"):
            writer.append(observation(0), action(0), timestamp_s=0, loss_weight=weight)
        assert writer.num_samples == 0


@pytest.mark.parametrize(
    ("weights", "what", "tick"),
    [
        (np.r_[np.ones(7), -1, np.nan, 1], "loss_weights is NaN, infinite or below 0 at ticks 7 to 8", 7),
        (np.ones(8), "loss_weights has 8 ticks, actions 10", 8),
        (np.ones((10, 2)), r"loss_weights has shape \(10, 2\) and .*, not numbers \(T,\)", None),
        (1.0, "loss_weights is not a dataset of one row for each tick", None),
        (h5py.Empty("f4"), "loss_weights is not a dataset of one row for each tick", None),
    ],
)  # fmt: skip
def test_wrong_weights_in_a_file_are_found(write, tmp_path, weights, what, tick):
    with h5py.File(write("a.hdf5"), "a") as file:
        file["data/demo_0"]["loss_weights"] = weights
    (fault,) = check_dataset(tmp_path).faults
    assert (fault.is_warning, fault.tick) == (False, tick)
    with pytest.raises(AssertionError, match=what):
        raise AssertionError(fault.what)
    with pytest.raises(UserError, match=r"a\.hdf5: data/demo_0/loss_weights does not hold one"):
        tick_weights(open_dataset(tmp_path))


def test_changes_of_the_action_weigh_more(write, tmp_path):
    """The arm alternates by two standard deviations at every tick; an own episode flips once."""
    write("a.hdf5")
    episodes = open_dataset(tmp_path)
    found = tick_weights(episodes, changes=4.0).tolist()
    assert found == [1] + [4] * 9  # the first tick of an episode has nothing to differ from


def test_a_small_difference_is_no_change(tmp_path, record):
    """`record` closes the gripper at tick 3 and moves the arm slowly, but for one return."""
    record(tmp_path / "a.hdf5", ticks=7)
    assert tick_weights(open_dataset(tmp_path), changes=2.0).tolist() == [1, 1, 1, 2, 1, 1, 1]


def test_the_first_ticks_after_a_stand_still_weigh_more(write, tmp_path):
    """At tick 5 the joints are still where they were; its action is the first that moves them."""
    write("a.hdf5", (1.0,) * 6 + (0.5,) + (1.0,) * 3)
    found = tick_weights(open_dataset(tmp_path), starts=10.0).tolist()
    assert found == [1, 1, 1, 1, 1, 10, 5, 10, 1, 1]


def test_the_rules_multiply(write, tmp_path):
    write("a.hdf5")
    found = tick_weights(open_dataset(tmp_path), changes=2.0, starts=10.0).tolist()
    assert found == [1, 2, 2, 2, 2, 20, 20, 20, 2, 2]


def test_a_short_pause_is_no_stand_still():
    moves = np.array([1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1], dtype=bool)
    assert starts_after_standing(moves).nonzero()[0].tolist() == [7, 8, 9, 12]


def test_starts_need_proprioception(write, tmp_path):
    write("a.hdf5")
    episodes = open_dataset(tmp_path)
    blind = EpisodeDataset(list(episodes), replace(episodes.spec, proprioception=()), source="it")
    with pytest.raises(UserError, match="it has no proprioception to stand still by"):
        tick_weights(blind, starts=2.0)


def test_ticks_that_a_policy_drove_may_weigh_less(tmp_path, spec, observation, action):
    person = [None, False, True, True, False]
    with EpisodeWriter(tmp_path / "a.hdf5", spec) as writer:
        for tick, drove in enumerate(person):
            writer.append(
                observation(tick), action(tick), timestamp_s=0.2 * tick, intervention=drove
            )
        writer.finish(instruction="wait", embedding=np.ones(384))
    assert check_dataset(tmp_path).num_errors == 0
    episodes = open_dataset(tmp_path)
    assert episodes[0].interventions.tolist() == [False, False, True, True, False]
    assert tick_weights(episodes).tolist() == [1.0] * 5
    assert tick_weights(episodes, policy=0.25).tolist() == [0.25, 0.25, 1.0, 1.0, 0.25]


def test_without_known_drivers_all_ticks_weigh_the_same(write, tmp_path):
    write("a.hdf5")
    episodes = open_dataset(tmp_path)
    assert episodes[0].interventions is None
    assert tick_weights(episodes, policy=0.0).tolist() == [1.0] * 10


def test_episodes_of_which_nothing_would_be_learned_are_refused(write, tmp_path):
    write("a.hdf5", (0.0,) * 10)
    with pytest.raises(UserError, match="has a weight above 0"):
        tick_weights(open_dataset(tmp_path))


def test_ticks_of_one_stand_still_have_one_number(tmp_path, spec, observation, action):
    """The robot moves after the third tick of the first episode, and at every tick of the second."""
    joints = [[0, 0, 0, 1, 1], [0, 1, 2]]
    for number, places in enumerate(joints):
        with EpisodeWriter(tmp_path / f"{number}.hdf5", spec) as writer:
            for tick, place in enumerate(places):
                seen = {**observation(0), **moved(spec, place)}
                writer.append(seen, action(tick), timestamp_s=0.2 * tick)
            writer.finish(instruction="wait", embedding=np.ones(384))
    episodes = open_dataset(tmp_path)
    assert stand_stills(episodes).tolist() == [1, 1, 1, 2, 2, 3, 4, 5]
    restless = EpisodeDataset([episodes[1], episodes[1]], episodes.spec, source="it")
    assert stand_stills(restless).tolist() == [1, 1, 1, 2, 2, 2], "it never stands"


def moved(spec, place):
    return {v.name: np.full(v.size, place, np.float32) for v in spec.proprioception}
