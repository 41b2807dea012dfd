"""Token summarisation by learned importance weights (TokenLearner, Ryoo et al. 2021).

The module follows version 1.1 of the authors' code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm


class Summarizer(nn.Module, ABC):
    """Summarise P tokens into K: S_k of the TTM paper (Ryoo et al. 2022, section 3.1).

    K is fixed at construction and P is free. There is no output projection.
    """

    @abstractmethod
    def weights(self, tokens: Tensor) -> Tensor:
        """Return the weight of each token in each summary.

        tokens: (B, P, D). Returns (B, P, K), which sums to one over P.
        """

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the sums of the tokens (B, P, D) weighted by `weights`, (B, K, D)."""
        return self.weights(tokens).transpose(1, 2) @ tokens


class LogitSummarizer(Summarizer):
    """A summariser whose weights are the softmax of logits, to which a bias can be added."""

    @abstractmethod
    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of each token in each summary: (B, P, D) to (B, P, K)."""

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer.weights`."""
        return self.logits(tokens).softmax(dim=1)


class TokenSummarizer(LogitSummarizer):
    """Compute the weights by an MLP of each token (TTM, eq. 1 and 3)."""

    def __init__(self, width: int, num_tokens: int, bottleneck: int = 64) -> None:
        """`num_tokens` is K, and `bottleneck` the hidden width of the MLP."""
        super().__init__()
        self.norm = layer_norm(width)
        self.mlp = Mlp(width, bottleneck, num_tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """See `LogitSummarizer.logits`."""
        logits: Tensor = self.mlp(self.norm(tokens))
        return logits
