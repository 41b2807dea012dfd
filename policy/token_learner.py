"""Token summarisation by learned importance weights (TokenLearner, Ryoo et al. 2021; version 1.1 of the code)."""

from __future__ import annotations

from torch import Tensor, nn

from ttm.policy.mlp import Mlp

LAYER_NORM_EPS = 1e-6


class TokenSummarizer(nn.Module):
    """Summarises P tokens into K weighted sums of them (TTM, eq. 1 and 3); there is no output projection."""

    def __init__(self, width: int, num_tokens: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, bottleneck, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D). The weights over P sum to one for each of the K."""
        weights: Tensor = self.mlp(self.norm(tokens)).softmax(dim=1)  # (B, P, K)
        return weights.transpose(1, 2) @ tokens
