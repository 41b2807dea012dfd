"""The mean of all ticks of the episode so far, as a temporal core: the example of policy/README.md.

This is the one file of a new core. In a real project it would lie in `policy/cores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ttm.policy.cores.core import CoreState
from ttm.policy.cores.sequence import SequenceConfig, SequenceCore
from ttm.policy.layers import Mlp, layer_norm


@dataclass(frozen=True)
class RunningMeanConfig(SequenceConfig):
    """The sizes of the core. All fields have defaults."""

    mlp_size: int = 512
    """Hidden width of the MLP of the outputs."""

    def build(self, width: int, num_inputs: int) -> RunningMean:
        return RunningMean(width, num_inputs, self)


class RunningMean(SequenceCore):
    """Return an MLP of the mean. The state is {"mean": (B, r, D), "ticks": (B,) int64}."""

    def __init__(self, width: int, num_inputs: int, config: RunningMeanConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.width = width
        self.norm = layer_norm(width)
        self.mlp = Mlp(width, config.mlp_size, width)

    def initial_state(self, batch_size: int) -> CoreState:
        """Return zeros."""
        mean = self.zeros(batch_size, self.num_outputs, self.width)
        ticks = torch.zeros(batch_size, dtype=torch.int64, device=mean.device)
        return {"mean": mean, "ticks": ticks}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore.step`."""
        ticks = state["ticks"] + 1
        difference = self.read(tokens) - state["mean"]
        mean = state["mean"] + difference / ticks.view(-1, 1, 1)
        return self.mlp(self.norm(mean)), {"mean": mean, "ticks": ticks}
