"""The public names of `ttm.datasets`, and what importing the package and its commands loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ttm.datasets
from ttm.datasets import EpisodeReader

HEAVY = ("torch", "h5py", "numpy", "PIL", "rich", "matplotlib", "sentence_transformers")


@pytest.mark.parametrize("name", ttm.datasets.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(ttm.datasets, name) is not None


def test_names_are_listed_and_unknown_ones_are_told() -> None:
    assert set(ttm.datasets.__all__) <= set(dir(ttm.datasets))
    assert ttm.datasets.EpisodeReader is EpisodeReader
    with pytest.raises(AttributeError, match="Episode"):
        ttm.datasets.Episode  # noqa: B018


def loaded_by(module: str, heavy: tuple[str, ...]) -> list[str]:
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return eval(done.stdout)


def test_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("ttm.datasets", HEAVY) == []


def test_data_sets_are_read_without_torch() -> None:
    """A program that records or reads episodes need not load the learning library."""
    code = "ttm.datasets.writer, ttm.datasets.dataset"
    assert loaded_by(code, ("torch", "sentence_transformers")) == []
