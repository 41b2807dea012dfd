"""The studies train a core that is added to the registry, with its defaults and the common sizes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from ttm.policy import CoreConfig, TemporalCore
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreState
from ttm.training.sequence_model import SequenceModel, fit, study_core
from ttm.training.study.common import GO, SMALL_CORE, copy_sequences
from ttm.training.study.minigrid_study import equal_core


@dataclass(frozen=True)
class LeakyConfig(CoreConfig):
    """A core that no study knows."""

    num_layers: int = 1
    kept: float = 0.5

    def build(self, width: int, num_inputs: int) -> LeakyCore:
        return LeakyCore(width, self.kept)


class LeakyCore(TemporalCore):
    """Keeps a part of a running sum."""

    num_outputs = 1

    def __init__(self, width: int, kept: float) -> None:
        super().__init__()
        self.kept, self.linear = kept, nn.Linear(width, width)

    def initial_state(self, batch_size: int) -> CoreState:
        return {"sum": self.linear.weight.new_zeros(batch_size, 1, len(self.linear.weight))}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        total = self.kept * state["sum"] + self.linear(tokens)
        return total, {"sum": total}


@pytest.fixture(autouse=True)
def _leaky_is_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.CoreEntry(f"{__name__}:LeakyConfig", "a test's core")
    names = (*registry.NAMES, "leaky")
    monkeypatch.setattr(registry, "CORES", {**registry.CORES, "leaky": entry})
    monkeypatch.setattr(registry, "NAMES", names)


def test_an_added_core_is_trained() -> None:
    config = study_core("leaky", SMALL_CORE, {})
    assert config == LeakyConfig(num_layers=2)
    symbols, digits = copy_sequences(4, 3, torch.Generator().manual_seed(0))
    model = SequenceModel(config, GO + 1, GO + 1, 8)
    (progress,) = fit(model, [(symbols, digits)], SequenceModel.loss, learning_rate=1e-3)
    assert progress.steps == 1


def test_an_added_core_without_mlps_keeps_its_size_beside_equal_ones() -> None:
    assert equal_core("leaky", 16) == LeakyConfig(num_layers=2)
