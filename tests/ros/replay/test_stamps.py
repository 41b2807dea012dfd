"""The stamps of an episode that is played, without ROS."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeReader, EpisodeWriter
from ttm.policy import ActionPart, PolicySpec, ProprioceptionSpec, UserError
from ttm_policy.replay import compare, stamps_ns

SPEC = PolicySpec(
    robot="arm",
    rate_hz=4.0,
    cameras=(),
    proprioception=(ProprioceptionSpec("joints", ("shoulder",)),),
    actions=(ActionPart("arm", 1, unit="m"),),
)


def _episode(path: Path, times_s: Sequence[float]) -> EpisodeReader:
    with EpisodeWriter(path, SPEC) as writer:
        for tick, _ in enumerate(times_s):
            observation = {"joints": np.zeros(1, np.float32)}
            writer.append(observation, np.zeros(1, np.float32), timestamp_s=float(tick))
        writer.finish(instruction="wave")
    with h5py.File(path, "r+") as file:
        file["data/demo_0/timestamps"][:] = times_s
    return EpisodeReader.open(path)


@pytest.mark.parametrize(
    ("times_s", "expected_s"),
    [([1.7e9, 1.7e9 + 0.3], [1.7e9, 1.7e9 + 0.3]), ([0.0, 0.25, 0.75], [2.0, 2.25, 2.75])],
)
def test_stamps_are_those_of_the_episode_but_never_0(
    tmp_path: Path, times_s: list[float], expected_s: list[float]
) -> None:
    stamps = stamps_ns(_episode(tmp_path / "episode.hdf5", times_s))
    assert stamps.tolist() == [round(Fraction(time_s) * 10**9) for time_s in expected_s]


@pytest.mark.parametrize(
    ("times_s", "message"),
    [([5.0, 6.0, 6.0], "tick 2 is not later"), ([5.0, 2.0**31], "the year 2038")],
)
def test_times_that_are_no_stamps_are_one_line(
    tmp_path: Path, times_s: list[float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stamps_ns(_episode(tmp_path / "episode.hdf5", times_s))


def test_the_comparison_names_the_first_tick_that_differs() -> None:
    recorded = np.zeros((3, 2), np.float32)
    commanded = recorded.copy()
    assert compare(commanded, recorded) == "3 of 3 actions are the recorded ones bit by bit"
    commanded[1, 1] = 0.25
    text = compare(commanded, recorded)
    assert text.startswith("2 of 3 actions")
    assert "tick 1 is the first that differs; the largest difference is 0.25" in text
