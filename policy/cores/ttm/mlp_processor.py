"""The plain MLP that processes each of TTM's read tokens by itself (the authors' `processing_unit='mlp'`)."""

from __future__ import annotations

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS


class MlpProcessor(nn.Module):
    """TTM's Process(Z): x <- MLP(LN x) in every layer, without a residual, and LayerNorm at the end."""

    def __init__(self, width: int, num_layers: int, mlp_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width, eps=LAYER_NORM_EPS), Mlp(width, mlp_size, width))
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, R, D) -> (B, R, D)."""
        x = tokens
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out
