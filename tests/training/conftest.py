"""Small episodes of a small robot, recorded with the project's own writer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.datasets import EpisodeWriter
from ttm.policy import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.train import TrainCommand
from ttm.training.trainer import Trainer

SPEC = PolicySpec(
    robot="small",
    cameras=(CameraSpec("head", 16, 16), CameraSpec("wrist", 16, 16)),
    proprioception=(ProprioceptionSpec("joints", ("shoulder (rad)", "elbow (rad)")),),
    actions=(
        ActionPart("arm", 2, "m", low=-1.0, high=1.0),
        ActionPart("gripper", 1, "1", "binary", 0.0, 1.0),
    ),
    rate_hz=5.0,
)


@pytest.fixture(autouse=True, scope="session")
def short_lessons() -> Iterator[None]:
    """A new sight memory learns for a moment, also for what tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ttm.training.train.LESSONS", 200)
        yield


@pytest.fixture(scope="session")
def spec() -> PolicySpec:
    return SPEC


def record(
    folder: Path, count: int, spec: PolicySpec = SPEC, ticks: int = 5, first_seed: int = 0
) -> Path:
    """Record `count` episodes with random frames, every third of them held out.

    The gripper closes in the middle of an episode.
    """
    for seed in range(first_seed, first_seed + count):
        rng = np.random.default_rng(seed)
        with EpisodeWriter(folder / f"episode_{seed}.hdf5", spec) as writer:
            for tick in range(ticks):
                observation = {
                    camera.name: rng.integers(
                        0, 256, (camera.height, camera.width, 3), dtype=np.uint8
                    )
                    for camera in spec.cameras
                }
                observation |= {
                    v.name: rng.normal(size=v.size).astype(np.float32) for v in spec.proprioception
                }
                action = np.r_[rng.uniform(-1, 1, 2), float(tick > ticks // 2)]
                writer.append(observation, action, timestamp_s=tick / spec.rate_hz)
            split = "valid" if seed % 3 == 2 else "train"
            embedding = rng.normal(size=384).astype(np.float32)
            writer.finish(instruction=f"do {seed}", seed=seed, embedding=embedding, split=split)
    return folder


@pytest.fixture(scope="session")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of five ticks, four to train on and two held out."""
    return record(tmp_path_factory.mktemp("episodes"), 6)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine episodes of 3 to 11 ticks, six to train on and three held out."""
    folder = tmp_path_factory.mktemp("uneven")
    for number, ticks in enumerate((3, 9, 4, 11, 5, 8, 10, 6, 7)):
        record(folder, 1, ticks=ticks, first_seed=number)
    return folder


@pytest.fixture(scope="session")
def other_robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of a robot of another name."""
    return record(tmp_path_factory.mktemp("other"), 3, replace(SPEC, robot="other"))


@pytest.fixture(scope="session")
def large_frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes whose cameras have more and fewer pixels than the tiny preset takes."""
    cameras = (CameraSpec("head", 72, 96), CameraSpec("wrist", 16, 16))
    return record(tmp_path_factory.mktemp("large"), 3, replace(SPEC, cameras=cameras))


PARTS = (
    "choices",
    "memory_start",
    "optimization",
    "input_dropout",
    "loss",
    "vision",
    "keeping",
    "processes",
)
"""Fields of `TrainCommand` whose own fields are options without a prefix."""


@pytest.fixture
def command(episodes: Path, tmp_path: Path) -> Callable[..., TrainCommand]:
    """Return a maker of trainings of a few small steps, which takes the options to change."""
    return lambda **changes: changed(short_training(episodes, tmp_path / "run"), changes)


@pytest.fixture(scope="session")
def trained(episodes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a training by `command`, whose FiLM layers are away from zero."""
    training = short_training(episodes, tmp_path_factory.mktemp("trained") / "run")
    assert training.run() == 0
    return training.out / "last.safetensors"


def short_training(episodes: Path, out: Path) -> TrainCommand:
    return TrainCommand(
        data=(str(episodes),), out=out, steps=2, window=3, batch_size=2, validations=1, threads=1
    )


def changed(command: TrainCommand, options: dict[str, Any]) -> TrainCommand:
    """Return `command` with other values of `options`, which may be options of its parts."""
    for name, value in options.items():
        for part in PARTS:
            config = getattr(command, part)
            if name in {field.name for field in fields(config)}:
                command = replace(command, **{part: replace(config, **{name: value})})
                break
        else:
            command = replace(command, **{name: value})
    return command


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[TrainCommand, int], None]:
    """Return a function that runs a training, which Ctrl-C stops after so many steps."""

    def run(training: TrainCommand, steps: int) -> None:
        whole = Trainer._train_step

        def train_step(self: Trainer, *args: Any) -> None:
            whole(self, *args)
            if self.progress.step == steps:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_train_step", train_step)
            assert training.run() == 130

    return run
