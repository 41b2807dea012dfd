"""The model of the studies on sequences of symbols: embedding, temporal core, classifier."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreConfig


class SequenceModel(nn.Module):
    """An embedding, a core with one input token per tick, and a linear layer on its mean output.

    The scores at tick t depend only on the symbols up to t, as the action of a control tick depends
    only on what was seen until then.
    """

    def __init__(self, config: CoreConfig, num_symbols: int, num_classes: int, width: int) -> None:
        """width: D, of the embedding and of the core.

        The embedding has values of order 1, which the Temporal Latent Bottleneck needs to learn the
        copying task.
        """
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, width)
        self.core = config.build(width, num_inputs=1)
        self.head = nn.Linear(width, num_classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """Return the scores (B, T, classes) of the symbols (B, T) int64."""
        return self.scores(self.embedding(symbols))

    def scores(self, embedded: Tensor) -> Tensor:
        """Return the scores (B, T, classes) of embedded symbols (B, T, D)."""
        outputs, _ = self.core(embedded.unsqueeze(2))  # (B, T, R, D)
        scores: Tensor = self.head(outputs.mean(dim=2))
        return scores

    @property
    def num_parameters(self) -> int:
        """The number of weights, including those of the embedding."""
        return sum(parameter.numel() for parameter in self.parameters())


def ticks_seen(model: SequenceModel, symbols: Tensor) -> int:
    """Return how many ticks back the last scores depend on, T - 1 at most, by their gradient.

    symbols: (1, T) int64.
    """
    # In float32 a gradient through hundreds of ticks may underflow to 0.
    model = copy.deepcopy(model).double()
    embedded = model.embedding(symbols).detach().requires_grad_()
    last = model.scores(embedded)[0, -1]
    (gradient,) = torch.autograd.grad(last @ torch.randn_like(last), embedded)
    seen = gradient[0].abs().sum(dim=1) > 0  # (T,)
    return len(seen) - 1 - int(seen.int().argmax())
