"""A data set of two episodes with all that our format can hold, and comparisons of data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ttm.datasets import EpisodeDataset, open_dataset
from ttm.datasets.description import Choices
from ttm.datasets.formats.hdf5 import recording_of
from ttm.datasets.formats.table import ConvertOptions
from ttm.datasets.tools.convert import Conversion, convert_dataset

LENGTHS = (6, 4)


@pytest.fixture
def demos(tmp_path: Path, record: Callable[..., Path]) -> EpisodeDataset:
    """Two episodes of different lengths, drivers, instructions, success and masks, with raw frames."""
    folder = tmp_path / "demos"
    facts = {"success": True, "task": "pick", "variation": "light=1 frames=2"}
    record(folder / "episode_00000.hdf5", LENGTHS[0], drivers=True, **facts)
    record(
        folder / "episode_00001.hdf5",
        LENGTHS[1],
        seed=7,
        success=False,
        task="wave",
        instruction="wave",
        split="valid",
    )
    return open_dataset(folder)


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., tuple[Path, Conversion]]:
    """convert(source, name, to="ttm", **options) converts to tmp_path / name."""

    def run(source: Any, name: str, to: str = "ttm", **options: Any) -> tuple[Path, Conversion]:
        path = getattr(source, "source", source)
        overwrite = options.pop("overwrite", False)
        target = tmp_path / name
        chosen = Choices(allow_external=options.pop("allow_external", False))
        choices = ConvertOptions(**{"choices": chosen, **options})
        return target, convert_dataset(path, target, to=to, options=choices, overwrite=overwrite)

    return run


@pytest.fixture
def assert_equal() -> Callable[..., None]:
    """assert_equal(ours, theirs) compares two data sets bit for bit.

    frames=False leaves the frames out; without: facts that the format in between cannot hold.
    """

    def compare(
        ours: EpisodeDataset,
        theirs: EpisodeDataset,
        frames: bool = True,
        without: tuple[str, ...] = (),
    ) -> None:
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine.actions, other.actions)
            np.testing.assert_array_equal(mine.executed_actions, other.executed_actions)
            np.testing.assert_array_equal(mine.interventions, other.interventions)
            for vector in ours.spec.proprioception:
                np.testing.assert_array_equal(
                    mine.proprioception(vector.name), other.proprioception(vector.name)
                )
            for camera in ours.spec.cameras if frames else ():
                np.testing.assert_array_equal(mine.frames(camera.name), other.frames(camera.name))
            for fact in {"instruction", "task", "success", "seed", "masks"} - set(without):
                assert getattr(mine, fact) == getattr(other, fact), fact
            assert recording_of(mine).variation == recording_of(other).variation
            if "timestamps" not in without:
                np.testing.assert_array_equal(mine.timestamps, other.timestamps)

    return compare
