"""`ttm train --window episode`: whole episodes from their first tick, in batches by length."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from ttm.datasets import WindowDataset
from ttm.policy import UserError
from ttm.training.batches import BatchSource, WholeEpisodes
from ttm.training.cli import parse
from ttm.training.data import open_all, split
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


@pytest.fixture
def source(uneven: Path) -> BatchSource:
    episodes = split(open_all([str(uneven)]), "train")  # 3, 9, 11, 5, 10 and 6 ticks
    return BatchSource(WindowDataset(episodes, 11, pad="none"), 2, 1, memory=WholeEpisodes())


def test_windows_are_whole_episodes_no_longer_than_the_longest_of_their_batch(
    source: BatchSource,
) -> None:
    batches = list(islice(source.batches(0), 3))
    assert sorted(batch.valid.shape[1] for batch in batches) == [5, 9, 11]
    lengths = sorted(int(ticks) for batch in batches for ticks in batch.valid.sum(dim=1))
    assert lengths == [3, 5, 6, 9, 10, 11]
    for batch in batches:
        assert batch.memory_reset[:, 0].all()
        assert not batch.memory_reset[:, 1:].any()
        for window, valid in zip(batch.actions[:, :, 0], batch.valid, strict=True):
            assert valid.sum() == valid.nonzero().max() + 1
            episode = next(e for e in source.windows.episodes if e.num_samples == int(valid.sum()))
            assert torch.equal(window[valid], torch.from_numpy(episode.actions))


def test_batches_depend_on_their_step_alone(source: BatchSource) -> None:
    unbroken = list(islice(source.batches(0), 10))
    for mine, theirs in zip(islice(source.batches(6), 4), unbroken[6:], strict=True):
        assert torch.equal(mine.actions, theirs.actions)
        assert torch.equal(mine.inputs.images["head"], theirs.inputs.images["head"])


def test_samples_are_whole_episodes_too(source: BatchSource) -> None:
    assert all(batch.memory_reset[:, 0].all() for batch in source.sample(3))


def test_the_option_is_a_number_or_episode() -> None:
    words = ["train", "--data", "d", "--out", "o", "--window"]
    assert parse([*words, "episode"]).window == "episode"  # type: ignore[attr-defined]
    assert parse([*words, "64"]).window == 64  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        parse([*words, "long"])


@pytest.mark.parametrize("memory", ["carry", "burn-in"])
def test_whole_episodes_have_no_memory_before_them(command: Make, memory: str) -> None:
    with pytest.raises(UserError, match=rf"without memory; leave --memory {memory} out"):
        command(window="episode", memory=memory).check()
