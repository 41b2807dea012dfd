"""Demonstrations of an expert, and their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ttm.policy import UserError

pytest.importorskip("minigrid")

from ttm.training.study import minigrid
from ttm.training.study.minigrid import Demonstrations, load_or_record, read, record
from ttm.training.study.minigrid_study import StudyMinigridCommand

LEVEL = StudyMinigridCommand("GoToObjS4")
"""The smallest level: a room of four tiles and one object."""


@pytest.fixture(scope="module")
def recorded() -> Demonstrations:
    return record(StudyMinigridCommand("GoToLocal"), range(12))


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minigrid, "SEEDS_A_FILE", 8)


def test_a_demonstration_can_be_replayed(recorded: Demonstrations) -> None:
    environment = StudyMinigridCommand("GoToLocal").environment()
    tick = 0
    for seed, length, mission in zip(
        recorded.seeds, recorded.lengths, recorded.missions, strict=True
    ):
        now = environment.reset(int(seed))
        assert now.mission == mission
        for last in range(length - 1, -1, -1):
            assert (now.image == recorded.images[tick]).all()
            assert now.direction == recorded.directions[tick]
            now, success, over = environment.step(int(recorded.actions[tick]))
            assert success == over == (last == 0)
            tick += 1
    assert tick == len(recorded.actions)


def same(first: Demonstrations, second: Demonstrations) -> bool:
    return all(np.array_equal(vars(first)[name], vars(second)[name]) for name in vars(first))


def test_demonstrations_are_kept_and_depend_on_the_count_alone(tmp_path: Path) -> None:
    first = load_or_record(LEVEL, 10, tmp_path, workers=1)
    assert same(first, record(LEVEL, range(10)))
    files = sorted(tmp_path.rglob("*.npz"))
    assert len(files) == 2
    times = [file.stat().st_mtime_ns for file in files]
    assert same(load_or_record(LEVEL, 20, tmp_path, workers=2).first(10), first)
    assert [file.stat().st_mtime_ns for file in files] == times


def test_a_damaged_file_is_recorded_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = load_or_record(LEVEL, 8, tmp_path, workers=1)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:-100])
    assert read(file) is None
    assert "damaged" in capsys.readouterr().err
    assert same(load_or_record(LEVEL, 8, tmp_path, workers=1), whole)
    assert read(file) is not None


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*file.*--cache"):
        load_or_record(LEVEL, 1, tmp_path / "file", workers=1)


def test_seeds_that_the_bot_does_not_solve_are_skipped_and_named() -> None:
    shown = record(StudyMinigridCommand("Unlock"), range(62, 65))
    assert shown.seeds.tolist() == [62, 64]
    assert shown.skipped.tolist() == [63]


def test_a_level_without_a_demonstrator_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minigrid, "demonstrate", lambda level, world, seed: [])
    with pytest.raises(UserError, match="solves 0 of 8 seeds of level GoToObjS4"):
        load_or_record(LEVEL, 4, tmp_path, workers=1)


def test_the_first_of_many_name_the_seeds_that_were_skipped_before_them() -> None:
    lengths, seeds = np.array([2, 1, 3]), np.array([0, 2, 5])
    ticks = np.arange(6, dtype=np.uint8)
    images = np.zeros((6, 7, 7, 3), np.uint8)
    missions, skipped = np.array(["a", "b", "c"]), np.array([1, 3, 4])
    many = Demonstrations(images, ticks, ticks, lengths, missions, seeds, skipped)
    few = many.first(2)
    assert few.actions.tolist() == [0, 1, 2]
    assert (len(few), few.missions.tolist(), few.skipped.tolist()) == (2, ["a", "b"], [1])
    assert many.first(3).skipped.tolist() == [1, 3, 4]


def test_files_of_earlier_releases_are_read(tmp_path: Path) -> None:
    """They held the seconds that the recording took."""
    shown = record(LEVEL, range(3))
    old = {**vars(shown), "seconds": 3.0, "missions": shown.missions.tolist()}
    np.savez_compressed(tmp_path / "old.npz", **old)
    again = read(tmp_path / "old.npz")
    assert again is not None
    assert same(again, shown)
