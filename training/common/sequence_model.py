"""A temporal core between symbols and symbols: the model of the studies on synthetic sequences."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreConfig


class SequenceModel(nn.Module):
    """An embedding, a core that meets one token a tick, and a linear layer on the mean of its outputs.

    The scores at tick t depend on the symbols up to t alone, as a control tick's action does on what was seen.
    """

    def __init__(self, config: CoreConfig, num_symbols: int, num_classes: int, width: int) -> None:
        """width: D, of the embedding and the core; the embedding is of scale 1, as the TLB's copying task needs."""
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, width)
        self.core = config.build(width, num_inputs=1)
        self.head = nn.Linear(width, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols: (B, T) int64 -> scores (B, T, classes)."""
        return self.scores(self.embedding(symbols))

    def scores(self, embedded: Tensor) -> Tensor:
        """embedded: (B, T, D) -> scores (B, T, classes)."""
        outputs, _ = self.core(embedded.unsqueeze(2))  # (B, T, R, D)
        scores: Tensor = self.head(outputs.mean(dim=2))
        return scores

    @property
    def num_parameters(self) -> int:
        """Weights, the embedding's included."""
        return sum(parameter.numel() for parameter in self.parameters())


def ticks_seen(model: SequenceModel, symbols: Tensor) -> int:
    """How many ticks back the last scores depend on, by their gradient; T - 1 at most. symbols: (1, T) int64."""
    model = copy.deepcopy(
        model
    ).double()  # what came through hundreds of ticks would be 0 in float32
    embedded = model.embedding(symbols).detach().requires_grad_()
    last = model.scores(embedded)[0, -1]
    (gradient,) = torch.autograd.grad(last @ torch.randn_like(last), embedded)
    seen = gradient[0].abs().sum(dim=1) > 0  # (T,)
    return len(seen) - 1 - int(seen.int().argmax())
