"""Opening and joining the episodes that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttm.datasets.description import Choices
from ttm.policy import UserError
from ttm.training.data import open_all, split


def test_several_data_sets_are_one(episodes: Path) -> None:
    files = sorted(str(path) for path in episodes.iterdir())
    joined = open_all([files[0], files[1]])
    assert len(split(joined, "train")) + len(split(joined, "valid")) == 2


def test_data_sets_of_different_robots_are_refused(episodes: Path, other_robot: Path) -> None:
    with pytest.raises(UserError, match=r"robot small, but .* has other"):
        open_all([str(episodes), str(other_robot)])


def test_a_wrong_camera_is_refused_with_those_there_are(episodes: Path) -> None:
    with pytest.raises(UserError, match="camera 'back' is not in this data; it has: head, wrist"):
        open_all([str(episodes)], Choices(cameras=("back",)))
