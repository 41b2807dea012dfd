"""Shuffled batches of windows: every window once in a pass, and the same ones after a resume."""

from __future__ import annotations

from itertools import chain, islice

import pytest

from ttm.datasets import WindowSampler
from ttm.policy import UserError


def test_the_sampler_shows_every_window_once_a_pass():
    batches = list(islice(WindowSampler(12, 4, seed=1), 6))
    assert sorted(chain(*batches[:3])) == list(range(12))
    assert sorted(chain(*batches[3:])) == list(range(12))
    assert batches[:3] != batches[3:]


def test_a_resumed_sampler_goes_on_where_it_was():
    unbroken = list(islice(WindowSampler(13, 4, seed=1), 9))
    assert list(islice(WindowSampler(13, 4, seed=1, first_batch=5), 4)) == unbroken[5:]


def test_a_data_set_smaller_than_a_batch_fills_it():
    (batch,) = islice(WindowSampler(3, 8, seed=0), 1)
    assert len(batch) == 8
    assert set(batch) == {0, 1, 2}


def test_an_impossible_batch_size_is_told():
    with pytest.raises(UserError, match="batch_size is 0"):
        WindowSampler(3, 0)
