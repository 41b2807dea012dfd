"""A multi-layer perceptron with one hidden layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.linear import Linear


class Mlp(nn.Module):
    """Apply Dense(in, hidden), GELU and Dense(hidden, out) to the last axis.

    GELU is computed by its tanh approximation, as in the code of the TTM authors.
    """

    def __init__(self, in_size: int, hidden_size: int, out_size: int) -> None:
        super().__init__()
        self.hidden = Linear(in_size, hidden_size)
        self.out = Linear(hidden_size, out_size)
        for layer in (self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in) to (..., out)."""
        out: Tensor = self.out(F.gelu(self.hidden(x), approximate="tanh"))
        return out
