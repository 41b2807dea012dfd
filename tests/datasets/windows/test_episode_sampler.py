"""Batches of whole episodes: similar lengths, every episode once, the same after a resume."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest

from ttm.datasets import EpisodeSampler
from ttm.policy import UserError

LENGTHS = np.random.default_rng(0).integers(10, 61, 400).tolist()


def test_every_episode_comes_once_a_pass():
    batches = list(islice(EpisodeSampler(LENGTHS, 16, seed=1), 50))
    assert sorted(chain(*batches[:25])) == list(range(400))
    assert sorted(chain(*batches[25:])) == list(range(400))
    assert batches[:25] != batches[25:]


def test_little_is_padding():
    batches = islice(EpisodeSampler(LENGTHS, 16), 25)
    longest = [max(LENGTHS[episode] for episode in batch) for batch in batches]
    padding = 1 - sum(LENGTHS) / (16 * sum(longest))
    assert padding < 0.1  # of batches drawn at random it is 0.4
    assert longest != sorted(longest)


def test_batches_of_the_same_lengths_differ_from_pass_to_pass():
    sampler = EpisodeSampler([7] * 32, 4, seed=1)
    passes = list(islice(sampler, 16))
    assert {frozenset(batch) for batch in passes[:8]} != {frozenset(b) for b in passes[8:]}


def test_a_resumed_sampler_goes_on_where_it_was():
    lengths = LENGTHS[:45]
    unbroken = list(islice(EpisodeSampler(lengths, 4, seed=1), 30))
    assert list(islice(EpisodeSampler(lengths, 4, seed=1, first_batch=13), 17)) == unbroken[13:]


def test_a_data_set_smaller_than_a_batch_fills_it():
    (batch,) = islice(EpisodeSampler([5, 9, 2], 8), 1)
    assert len(batch) == 8
    assert set(batch) == {0, 1, 2}


def test_an_impossible_batch_size_is_told():
    with pytest.raises(UserError, match="batch_size is 0"):
        EpisodeSampler([3], 0)
