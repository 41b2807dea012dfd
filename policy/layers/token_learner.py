"""Token summarisation by learned importance weights (TokenLearner, Ryoo et al. 2021; version 1.1 of the code)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp

LAYER_NORM_EPS = 1e-6


class Summarizer(nn.Module, ABC):
    """Summarises P tokens into K: TTM's S_k (Ryoo et al. 2022, section 3.1). There is no output projection.

    K is fixed at construction, P is free.
    """

    @abstractmethod
    def weights(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, P, K): how much each token counts for each summary; sums to one over P."""

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D), the sums of the tokens weighted by `weights`."""
        return self.weights(tokens).transpose(1, 2) @ tokens


class TokenSummarizer(Summarizer):
    """Weights by an MLP of each token (TTM, eq. 1 and 3)."""

    def __init__(self, width: int, num_tokens: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, bottleneck, num_tokens)

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer`."""
        logits: Tensor = self.mlp(self.norm(tokens))  # (B, P, K)
        return logits.softmax(dim=1)
