"""A training resumes what it was: the same options, episodes and length."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from ttm.datasets import windows as frame_store
from ttm.policy import UserError
from ttm.training.batches import SECTIONS_APART
from ttm.training.resume import read_header
from ttm.training.run_log import resume_path
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the header of a saved state."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    metadata["header"] = json.dumps(change(json.loads(metadata["header"])))
    save_file(tensors, path, metadata=metadata)


@pytest.fixture
def copied(episodes: Path, tmp_path: Path) -> Path:
    """The episodes of `command` in another folder."""
    return shutil.copytree(episodes, tmp_path / "copied")


def changed(folder: Path, member: str) -> None:
    """Change the first value of a member of the first episode."""
    with h5py.File(folder / "episode_0.hdf5", "r+") as file:
        values = file["data/demo_0"][member]
        value = values[0]
        value.flat[0] += 1
        values[0] = value


def test_episodes_are_known_by_their_content(command: Make, copied: Path) -> None:
    training = command(steps=1)
    training.run()
    resumed = {"steps": 1, "resume": True, "data": (str(copied),)}
    assert command(**resumed).run() == 0, "copies are the same episodes"
    changed(copied, "actions")
    changed(copied, "obs/head")
    facts = "training frames .* then, .* now.*, training actions .*, training executed actions"
    with pytest.raises(UserError, match=rf"cannot resume exactly: {facts}.*--resume-anyway"):
        command(**resumed).run()
    (copied / "episode_1.hdf5").unlink()
    with pytest.raises(UserError, match=r"training episodes \(4 then, 3 now\), training ticks"):
        command(**resumed).run()


def test_another_length_is_told_and_allowed_by_a_flag(
    command: Make, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = command(steps=1)
    training.run()
    with pytest.raises(UserError, match=r"cannot resume exactly: --steps \(1 then, 2 now\)"):
        command(steps=2, resume=True).run()
    changed(copied, "obs/joints")
    data = {"data": (str(copied),)}
    assert command(steps=2, resume=True, resume_anyway=True, **data).run() == 0
    told = capsys.readouterr().err
    assert "resumed in spite of --steps (1 then, 2 now)" in told
    assert "resumed in spite of training joints" in told
    header = read_header(resume_path(training.out))
    assert (header["length"]["steps"], header["progress"]["step"]) == (2, 2)
    assert command(steps=2, resume=True, **data).run() == 0, "what was allowed is what counts now"


def test_states_saved_before_these_facts_can_be_resumed(command: Make) -> None:
    training = command(steps=1)
    training.run()

    def older(header: dict[str, Any]) -> dict[str, Any]:
        del header["data"], header["length"], header["progress"]["validations_since_best"]
        for name in [name for name in header["options"] if name.startswith("optimizer.")]:
            del header["options"][name]
        return header

    rewritten(resume_path(training.out), older)
    assert command(steps=2, resume=True).run() == 0
    assert "data" in read_header(resume_path(training.out))


def test_a_training_goes_on_in_the_order_in_which_it_began(
    command: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shuffle() -> object:
        return read_header(resume_path(command().out))["shuffle"]

    with monkeypatch.context() as little_memory:
        little_memory.setattr(frame_store, "available_memory_bytes", lambda: 0)
        command(steps=1, workers=0).run()
    assert shuffle() == SECTIONS_APART
    assert "frames are read from the files, with a shuffle of 24; up to" in capsys.readouterr().err
    go_on = {"resume": True, "resume_anyway": True}
    command(steps=2, **go_on).run()
    assert shuffle() == SECTIONS_APART, "although all frames are in memory now"
    with pytest.raises(UserError, match=r"another training .*shuffle \(auto then, all now\)"):
        command(steps=2, resume=True, shuffle="all").run()

    def older(header: dict[str, Any]) -> dict[str, Any]:
        del header["shuffle"], header["options"]["shuffle"]
        return header

    rewritten(resume_path(command().out), older)
    monkeypatch.setattr(frame_store, "available_memory_bytes", lambda: 0)
    command(steps=3, workers=0, **go_on).run()
    assert shuffle() == "all", "as it was before there were sections"
