"""`ttm collect`: files of the expert's own actions, the same for any number of workers."""

import shutil

import numpy as np
import pytest

from ttm.datasets import EpisodeWriter, open_dataset
from ttm.policy import UserError
from ttm.sim.collect import CollectCommand
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.memory.cue import LIT
from ttm.sim.tasks.memory.side_shown import SideShown


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demos")
    assert (
        CollectCommand(
            out=folder, task="open_drawer", episodes=2, workers=2, first_seed=1_000_000
        ).run()
        == 0
    )
    return folder


def test_files_hold_whole_successful_episodes(recorded):
    dataset = open_dataset(recorded)
    assert len(dataset) == 2
    for episode in dataset:
        assert episode.spec == SPEC
        assert episode.success
        assert episode.task == "open_drawer"
        assert episode.instruction.startswith("open the ")
        assert episode.language_embedding.shape == (384,)
        assert np.diff(episode.timestamps) == pytest.approx(SPEC.control_dt_s, abs=1e-6)
        assert episode.actions[-1, SPEC.action_slices["terminate"]] == 1


def test_the_same_files_come_from_one_worker(recorded, tmp_path):
    CollectCommand(
        out=tmp_path, task="open_drawer", episodes=2, workers=1, first_seed=1_000_000
    ).run()
    for ours, theirs in zip(open_dataset(recorded), open_dataset(tmp_path), strict=True):
        assert np.array_equal(ours.actions, theirs.actions)
        assert np.array_equal(ours.frames("head", 0, 5), theirs.frames("head", 0, 5))


def test_existing_episodes_are_kept(recorded):
    before = {path: path.stat().st_mtime_ns for path in recorded.iterdir()}
    CollectCommand(
        out=recorded, task="open_drawer", episodes=2, workers=1, first_seed=1_000_000
    ).run()
    assert {path: path.stat().st_mtime_ns for path in recorded.iterdir()} == before


def test_no_episodes_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--episodes is 0; give 1 or more"):
        CollectCommand(out=tmp_path, episodes=0).run()


def lit_pixels(folder, tick):
    """The number of pixels of the head's frames at that tick that have the hue of a lit field."""
    (episode,) = open_dataset(folder)
    colours = episode.frames("head", tick, tick + 1).reshape(-1, 3) / 255
    hues = colours / colours.max(axis=1, keepdims=True).clip(1e-6)
    return int((np.abs(hues - LIT[:3]).max(axis=1) < 0.15).sum())


def test_a_cue_that_is_left_on_can_be_seen_when_the_robot_may_act(tmp_path):
    go_tick = SideShown.cue_ticks + 3
    for cue, seen_at_go in (("hidden", False), ("left_on", True)):
        out = tmp_path / cue
        assert (
            CollectCommand(
                out=out, task="side_shown", episodes=1, workers=1, gap=3, cue=cue, disturbance=0
            ).run()
            == 0
        )
        assert lit_pixels(out, 0) >= 10
        assert (lit_pixels(out, go_tick) >= 10) == seen_at_go


@pytest.mark.parametrize("task", ["pick", "all"])
def test_a_cue_cannot_be_left_on_in_skills(task, tmp_path):
    with pytest.raises(UserError, match=r"^--cue left_on needs a memory task[^\n]*'pick' is none"):
        CollectCommand(out=tmp_path / "out", task=task, episodes=1, cue="left_on").run()
    assert not (tmp_path / "out").exists()


def test_no_part_stays_of_what_workers_could_not_finish(tmp_path, monkeypatch):
    """A worker that is ended while another one fails deletes nothing itself."""
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(EpisodeWriter, "abandon", lambda writer: None)
    with pytest.raises(UserError, match="No space left on device"):
        CollectCommand(out=tmp_path, task="open_drawer", episodes=1, workers=1).run()
    assert list(tmp_path.glob(".*.partial")) == []
