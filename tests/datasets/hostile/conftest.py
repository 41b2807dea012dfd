"""A small file in robomimic's layout to damage, and what show, check and training say of a path."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.datasets import EpisodeDataset, check_dataset, open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.tools.check import DataCheckCommand
from ttm.datasets.tools.show import DataShowCommand
from ttm.policy import UserError

TICKS = 6


@dataclass(frozen=True)
class Answer:
    """What the commands say of a path."""

    faults: str
    """All that `ttm data check` names, one fault a line, or its refusal."""
    fails: bool
    """Whether `ttm data check` fails."""
    refusal: str | None
    """Why training does not open the data; None if it does."""
    episodes: EpisodeDataset | None


def write_file(path: Path, seed: int = 0, demos: int = 2) -> Path:
    """Write demos with a camera, a vector and 3 action dimensions, without a spec."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 2})
        for number in range(demos):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = TICKS
            demo.attrs["language_instruction"] = "lift the cube"
            demo["actions"] = rng.normal(size=(TICKS, 3))
            demo["obs/front"] = rng.integers(0, 256, (TICKS, 8, 8, 3), dtype=np.uint8)
            demo["obs/joints"] = rng.normal(size=(TICKS, 2))
    return path


@pytest.fixture
def small_file(tmp_path: Path) -> Callable[..., Path]:
    """small_file(change=None, seed=0) writes a file, lets `change` work on it and returns its path."""

    def make(
        change: Callable[[Any], Any] | None = None, name: str = "a.hdf5", seed: int = 0
    ) -> Path:
        path = write_file(tmp_path / name, seed)
        if change is not None:
            with h5py.File(path, "a") as file:
                change(file)
        return path

    return make


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """answer(path, **choices) asks every command; anything but a `UserError` fails the test."""

    def ask(path: Path, **options: Any) -> Answer:
        choices = Choices(**options)
        episodes, refusal = None, None
        try:
            episodes = open_dataset(path, choices=choices)
            read_all(episodes)
        except UserError as error:
            refusal = str(error)
        try:
            found = check_dataset(path, choices)
            faults = "\n".join(f"{fault.what} -> {fault.remedy}" for fault in found.faults)
            fails = DataCheckCommand(str(path), choices).run() == 1
            assert fails == (found.num_errors > 0)
        except UserError as error:
            faults, fails = str(error), True
        with suppress(UserError):
            DataShowCommand(str(path), choices=choices).run()
        capsys.readouterr()
        for text in (faults, refusal or ""):
            assert "delete" not in text.lower()
            assert "Traceback" not in text
        assert fails or refusal is None, f"check passes, but training says: {refusal}"
        return Answer(faults, fails, refusal, episodes)

    return ask


def read_all(episodes: EpisodeDataset) -> None:
    """Read what a training reads."""
    for episode in episodes:
        episode.actions, episode.executed_actions, episode.loss_weights, episode.timestamps  # noqa: B018
        assert episode.interventions is None or len(episode.interventions) == episode.num_samples
        for vector in episode.spec.proprioception:
            values = episode.proprioception(vector.name)
            assert values.shape == (episode.num_samples, vector.size)
        for camera in episode.spec.cameras:
            frames = episode.frames(camera.name)
            assert frames.dtype == np.uint8
            assert frames.shape == (episode.num_samples, camera.height, camera.width, 3)
