from __future__ import annotations

import pytest
import torch
from torch import nn

from ttm.training.trainer import WeightAverage, calibrate_batch_norm


def test_the_average_follows_at_a_decay_that_warms_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, decay=0.5)
    nn.init.ones_(model.weight)
    expected = 0.0
    for updates in range(1, 30):
        average.update()
        expected += (1 - min(0.5, (1 + updates) / (10 + updates))) * (1 - expected)
        assert average.model.weight.item() == pytest.approx(expected)


def test_the_average_is_in_evaluation_mode_and_needs_no_gradient() -> None:
    average = WeightAverage(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_constants_that_are_not_saved_stay_as_they_are() -> None:
    """Limits of unlimited commands are infinite, and infinity minus infinity is NaN."""
    model = nn.Linear(1, 1)
    model.register_buffer("limit", torch.tensor(float("inf")), persistent=False)
    average = WeightAverage(model)
    average.update()
    assert average.model.limit == float("inf")


def test_batch_norm_gets_the_statistics_of_the_batches_it_is_shown() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9)).eval()
    model[0].running_mean.fill_(50)
    batches = torch.randn(4, 64, 3) * 2 + 5
    calibrate_batch_norm(model, (model(batch) for batch in batches))
    assert torch.allclose(model[0].running_mean, batches.mean(dim=(0, 1)), atol=1e-5)
    assert torch.allclose(model[0].running_var, batches.var(dim=1).mean(dim=0), atol=1e-4)
    assert not model[0].training
    assert model[0].momentum == 0.1


def test_a_model_without_batch_norm_is_shown_nothing() -> None:
    shown = iter([1])
    calibrate_batch_norm(nn.Linear(1, 1), shown)
    assert next(shown) == 1
