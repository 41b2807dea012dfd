"""Several data sets in a training: how they are joined, their weights, and what is told about each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import h5py
import pytest

from ttm.datasets.description import Choices
from ttm.policy import UserError
from ttm.training.data import open_all, paths_and_shares, split
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


def test_weights_are_read_off_the_paths_and_become_shares() -> None:
    assert paths_and_shares(["a:7", "some/b:3"]) == (["a", "some/b"], (0.7, 0.3))
    assert paths_and_shares(["a", "b"]) == (["a", "b"], None)


def test_paths_with_colons_are_paths(tmp_path: Path) -> None:
    there = tmp_path / "run:2"
    there.mkdir()
    for path in (str(there), str(tmp_path / "run:?"), "C:data", "12:30:x", ":2"):
        assert paths_and_shares([path]) == ([path], None)
    assert paths_and_shares([f"{there}:0.5"])[0] == [str(there)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["a:2", "b"], "b has no weight, and others have"),
        (["a:0", "b:1"], "the weight must be above 0"),
        (["a:-1", "b:1"], "the weight must be above 0"),
    ],
)
def test_odd_weights_are_refused(data: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        paths_and_shares(data)


@pytest.fixture
def mixed(command: Make, episodes: Path, uneven: Path) -> TrainCommand:
    return command(data=(f"{episodes}:3", f"{uneven}:1"), steps=3)


def test_files_of_one_episode_are_split_as_their_folder_would_be(
    command: Make, episodes: Path, uneven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a shell gives them for `--data folder/*.hdf5`; none of them has a mask."""
    folder = Path(copytree(episodes, tmp_path / "episodes"))
    files = sorted(folder.glob("*.hdf5"))
    for path in files:
        with h5py.File(path, "r+") as file:
            file.pop("mask", None)
    for data in ((str(folder),), tuple(map(str, files))):
        command(data=data, steps=1, overwrite=True).run()
        told = capsys.readouterr().err
        assert "1 of 6 episodes (every tenth) are held out" in told
        assert "5 episodes (" in told
    command(data=(*map(str, files), str(uneven)), steps=1, overwrite=True).run()
    assert "6 files of one episode: 5 episodes to train on, 1 held out" in capsys.readouterr().err


def test_a_mix_resumes_exactly_and_tells_of_each_data_set(
    mixed: TrainCommand,
    interrupted: Callable[[TrainCommand, int], None],
    episodes: Path,
    uneven: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unbroken = replace(mixed, out=tmp_path / "unbroken")
    unbroken.run()
    told = capsys.readouterr().err
    assert f"{episodes}: 4 episodes to train on (75% of the windows), 2 held out" in told
    result = json.loads((unbroken.out / "result.json").read_text())
    assert result["validation"]["policy"]["ticks"] == 10 + 19

    interrupted(mixed, 1)
    other = replace(mixed, data=(f"{episodes}:1", f"{uneven}:1"), resume=True)
    with pytest.raises(UserError, match=r"training shares \(\[0.75, 0.25\] then, \[0.5, 0.5\] now"):
        other.run()
    assert replace(mixed, resume=True).run() == 0
    one, two = (each.out / "last.safetensors" for each in (unbroken, mixed))
    weights = [path.read_bytes()[-100_000:] for path in (one, two)]  # behind the metadata
    assert weights[0] == weights[1]


def test_a_data_set_with_a_weight_and_no_episodes_is_refused(
    command: Make, episodes: Path, other_robot: Path
) -> None:
    held_out = next(episodes.glob("episode_2.hdf5"))
    with pytest.raises(UserError, match="has a weight and no episode to train on"):
        command(data=(f"{episodes}:1", f"{held_out}:1")).run()


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
