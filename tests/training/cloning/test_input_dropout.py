from __future__ import annotations

import numpy as np
import torch

from ttm.policy import PolicyInputs
from ttm.training.batches import drop_inputs
from ttm.training.options import InputDropoutConfig


def inputs(batch: int, ticks: int = 3) -> PolicyInputs:
    valid = torch.ones(batch, ticks, dtype=torch.bool)
    valid[:, 0] = False
    return PolicyInputs({}, {}, torch.zeros(batch, ticks, 3), valid, torch.zeros(batch, 4))


def test_previous_actions_are_hidden_for_whole_windows_at_the_rate_asked_for() -> None:
    config = InputDropoutConfig(previous_action_dropout=0.3, proprioception_dropout=0.8)
    dropped = drop_inputs(inputs(2000), config, np.random.default_rng(0))
    seen = dropped.previous_action_valid
    assert not seen[:, 0].any()  # an episode's first tick has none
    assert torch.equal(seen[:, 1], seen[:, 2])
    assert abs(seen[:, 1].float().mean() - 0.7) < 0.05
    felt = dropped.proprioception_valid
    assert felt is not None
    assert torch.equal(felt[:, :1].expand_as(felt), felt)
    assert abs(felt[:, 0].float().mean() - 0.2) < 0.05


def test_no_dropout_hides_nothing() -> None:
    given = inputs(50)
    kept = drop_inputs(given, InputDropoutConfig(0.0, 0.0), np.random.default_rng(0))
    assert torch.equal(kept.previous_action_valid, given.previous_action_valid)
    assert kept.proprioception_valid is not None
    assert kept.proprioception_valid.all()
