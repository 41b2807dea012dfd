"""Statistics of actions and proprioception over a data set."""

from __future__ import annotations

import numpy as np
import pytest

from ttm.datasets import dataset_statistics, open_dataset
from ttm.policy import UserError


def test_statistics_are_over_all_ticks(tmp_path, record):
    for i, ticks in enumerate((6, 3, 10)):
        record(tmp_path / f"{i}.hdf5", ticks=ticks, seed=i)
    episodes = open_dataset(tmp_path)
    statistics = dataset_statistics(episodes)
    actions = np.concatenate([episode.actions for episode in episodes])
    np.testing.assert_allclose(statistics.actions.mean, actions.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.actions.std, actions.std(axis=0), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(statistics.actions.max, actions.max(axis=0))
    assert statistics.proprioception["joints"].std.shape == (3,)
    with pytest.raises(UserError, match="no episode"):
        dataset_statistics([])
