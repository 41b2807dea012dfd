"""Training on the episodes of others: what is used is told, and grippers come back as they were."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets import check_dataset
from ttm.datasets.formats.recording import EPISODES, SPEC
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.tools.convert import convert_dataset
from ttm.policy import PolicyRunner, UserError

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
    monkeypatch.setattr("ttm.training.trainer.LOG_EVERY", 1)
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
    with pytest.raises(UserError, match="all episodes are held out"):
        command(filter="valid", steps=1, out=tmp_path / "same").run()


def in_every_demo(key: str, values: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        for demo in file["data"].values():
            demo.pop(key, None)
            demo[key] = values

    return change


def held_out(*names: str) -> Callable[[Any], None]:
    return lambda file: file.create_dataset("mask/valid", data=[name.encode() for name in names])


REFUSED = {
    "all weights zero": in_every_demo("loss_weights", np.zeros(TICKS)),
    "all weights zero but of those held out": lambda file: [
        in_every_demo("loss_weights", np.zeros(TICKS))(file),
        file["data/demo_3/loss_weights"].write_direct(np.ones(TICKS)),
        held_out("demo_3")(file),
    ],
    "weights that overflow": in_every_demo("loss_weights", np.full(TICKS, 1e30)),
    "all held out": held_out("demo_0", "demo_1", "demo_2", "demo_3"),
    "actions that never move": in_every_demo("actions", np.ones((TICKS, 3))),
    "executed actions that overflow": in_every_demo("executed_actions", np.full((TICKS, 3), 1e30)),
    "an embedding that overflows": in_every_demo("language_embedding", np.full(384, 1e30)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_fails_where_training_does(command: Any, robosuite_file: Path, case: str) -> None:
    assert check_dataset(robosuite_file).num_errors == 0
    with h5py.File(robosuite_file, "a") as file:
        REFUSED[case](file)
    with pytest.raises(UserError):
        command(data=(str(robosuite_file),), steps=1).run()
    assert check_dataset(robosuite_file).num_errors > 0


def test_a_blank_instruction_is_none(
    command: Any, robosuite_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(robosuite_file, "a") as file:
        for demo in file["data"].values():
            demo.attrs["language_instruction"] = " "
    assert check_dataset(robosuite_file).num_errors == 0
    assert command(data=(str(robosuite_file),), steps=1).run() == 0
    assert "4 episodes have no instruction" in " ".join(capsys.readouterr().err.split())
