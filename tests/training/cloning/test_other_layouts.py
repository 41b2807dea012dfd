"""Training on the episodes of others: what is used is told, and grippers come back as they were."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets.convert.convert import convert_dataset
from ttm.datasets.convert.facts import EPISODES, SPEC
from ttm.datasets.convert.options import ConvertOptions
from ttm.policy.errors import UserError
from ttm.policy.run.runner import PolicyRunner

TICKS = 6


@pytest.fixture
def robosuite_file(tmp_path: Path) -> Path:
    """Four demos with simulator state, a camera, and a gripper of -1 and 1."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "theirs.hdf5", "w") as file:
        env_args = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
        file.create_group("data").attrs["env_args"] = json.dumps(env_args)
        for number in range(4):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs.update(num_samples=TICKS, language_instruction="lift the cube")
            actions = rng.normal(size=(TICKS, 3))
            actions[:, 2] = np.where(np.arange(TICKS) < 3, -1, 1)
            demo["actions"] = actions
            demo["obs/agentview_image"] = rng.integers(0, 256, (TICKS, 16, 16, 3), dtype=np.uint8)
            demo["obs/robot0_eef_pos"] = rng.normal(size=(TICKS, 3))
            demo["obs/object"] = rng.normal(size=(TICKS, 10))
    return tmp_path / "theirs.hdf5"


def test_a_state_only_policy_gives_the_robots_own_gripper_commands(
    command: Any, robosuite_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = command(data=(str(robosuite_file),), cameras=("none",), steps=2)
    assert training.run() == 0
    told = capsys.readouterr().err
    assert "obs/object not used: simulator state" in told
    assert "cameras none" in told
    runner = PolicyRunner.from_checkpoint(training.out / "best.safetensors", engine="torch")
    runner.reset("lift the cube")
    action = runner.step({"robot0_eef_pos": np.zeros(3, np.float32)})
    assert action.values[2] in (-1, 1)


def test_a_checkpoint_says_how_bare_files_are_read(
    command: Any, robosuite_file: Path, tmp_path: Path
) -> None:
    """A training that chose an odd vector goes on with it, without being told again."""
    chosen = {"cameras": ("none",), "proprioception": ("object",), "steps": 1}
    first = command(data=(str(robosuite_file),), **chosen)
    assert first.run() == 0
    second = command(
        data=(str(robosuite_file),),
        init=first.out / "best.safetensors",
        out=tmp_path / "second",
        steps=1,
    )
    assert second.run() == 0


def test_lerobots_data_train_to_the_same_losses_as_the_same_episodes_in_hdf5(
    command: Any, robosuite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In version 3.0 without loss, with nothing beside it that LeRobot's own writer would not write."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("av")
    monkeypatch.setattr("ttm.training.cloning.loop.trainer.LOG_EVERY", 1)
    lossless = ConvertOptions(video_codec="none")
    convert_dataset(robosuite_file, tmp_path / "lerobot", to="lerobot", options=lossless)
    for name in (SPEC, EPISODES):
        (tmp_path / "lerobot" / "meta" / name).unlink(missing_ok=True)
    convert_dataset(tmp_path / "lerobot", tmp_path / "ours")

    def losses(data: Path) -> tuple[list[str], Any]:
        training = command(
            data=(str(data),), out=tmp_path / f"run_{data.stem}", steps=3, logger=("csv",)
        )
        assert training.run() == 0
        with (training.out / "csv" / "version_0" / "metrics.csv").open() as file:
            steps = [row["train/loss"] for row in csv.DictReader(file) if row["train/loss"]]
        result = json.loads((training.out / "result.json").read_text())
        return steps, [result[split]["policy"] for split in ("training", "validation")]

    theirs = losses(robosuite_file)
    assert len(theirs[0]) == 3
    assert losses(tmp_path / "ours") == theirs


def test_no_copy_of_a_held_out_episode_is_trained_on(
    command: Any, episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = tmp_path / "twice"
    shutil.copytree(episodes, twice)
    shutil.copy(twice / "episode_0.hdf5", twice / "z.hdf5")
    assert command(data=(str(twice),), filter="train", steps=1).run() == 0
    assert "1 episodes are copies of others" in capsys.readouterr().err
    with pytest.raises(UserError, match="every episode to train on is also held out"):
        command(filter="valid", steps=1, out=tmp_path / "same").run()
