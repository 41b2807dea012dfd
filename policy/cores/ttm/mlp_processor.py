"""The processor that applies a plain MLP to each token (the authors' `processing_unit='mlp'`)."""

from __future__ import annotations

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm


class MlpProcessor(nn.Module):
    """Apply x <- MLP(LN x) in every layer, without residual connections, and a final LayerNorm."""

    def __init__(self, width: int, num_layers: int, mlp_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(layer_norm(width), Mlp(width, mlp_size, width)) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, r, D) to (B, r, D)."""
        x = tokens
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out
