"""A number as something to add to a token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp


class ScalarCode(nn.Module):
    """Map a number to a vector by an MLP. The vector is 0 at first, so that adding it changes nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(1, width, width)
        nn.init.zeros_(self.mlp.out.weight)

    def forward(self, value: Tensor) -> Tensor:
        """Map value (B, T), of order 1, to (B, T, 1, D)."""
        code: Tensor = self.mlp(value[..., None, None])
        return code

    def rescale(self, factor: float) -> None:
        """From now on, map each value to the vector that `factor` times the value was mapped to."""
        with torch.no_grad():
            self.mlp.hidden.weight.mul_(factor)
