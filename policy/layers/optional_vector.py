"""A token for a vector that may be hidden."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp


class OptionalVector(nn.Module):
    """Map a vector to one token by an MLP. A learned token replaces it where it is not valid."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(size, width, width)
        self.none = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, vector: Tensor, valid: Tensor | None) -> Tensor:
        """Return the token, (B, T, 1, D).

        vector: (B, T, K); valid: (B, T) bool, or None for True everywhere.
        """
        token: Tensor = self.mlp(vector)
        if valid is not None:
            token = torch.where(valid.unsqueeze(-1), token, self.none)
        return token.unsqueeze(2)
