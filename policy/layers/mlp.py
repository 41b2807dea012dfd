"""Two dense layers with the tanh approximation of GELU between them, as in the TTM authors' code."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Dense(in, hidden), gelu, Dense(hidden, out), on the last axis."""

    def __init__(self, in_size: int, hidden_size: int, out_size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_size, hidden_size)
        self.out = nn.Linear(hidden_size, out_size)
        for layer in (self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in) -> (..., out)."""
        out: Tensor = self.out(F.gelu(self.hidden(x), approximate="tanh"))
        return out
