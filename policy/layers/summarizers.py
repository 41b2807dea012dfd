"""The other token summarisers of the TTM paper: learned queries, with heads and without, and pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.token_learner import Summarizer
from ttm.policy.layers.transformer import head_size

NUM_HEADS = 8
"""Heads of the authors' TokenLearnerMHA, whatever the Transformer has."""


class AttentionSummarizer(Summarizer):
    """K learned queries attend to the tokens by multi-head attention (`TokenLearnerMHA` of the authors' code).

    No LayerNorm and no residual. The result is projected, head by head and at the end, so it is not the
    sum of the tokens by `weights`, which are the mean over heads.
    """

    def __init__(self, width: int, num_tokens: int, num_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.num_heads, self.head_size = (
            num_heads,
            head_size(width, num_heads, "the summariser 'mha'"),
        )
        self.queries = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)  # one matrix product for both
        self.out = nn.Linear(width, width)
        for layer in (self.query, self.key_value, self.out):
            _lecun_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer`."""
        query, key, _ = self._heads(tokens)
        logits: Tensor = query @ key.transpose(-1, -2) * self.head_size**-0.5  # (B, nh, K, P)
        return logits.softmax(dim=-1).mean(dim=1).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D)."""
        mixed = F.scaled_dot_product_attention(*self._heads(tokens))  # (B, nh, K, hs)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query (B, nh, K, hs), key and value (B, nh, P, hs)."""
        query = (
            self.query(self.queries).unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)
        )
        both = self.key_value(tokens).unflatten(
            -1, (2, self.num_heads, self.head_size)
        )  # (B, P, 2, nh, hs)
        key, value = both.permute(2, 0, 3, 1, 4).unbind()
        return query.expand(tokens.shape[0], -1, -1, -1), key, value


class QuerySummarizer(Summarizer):
    """K learned queries compared with the tokens themselves, in one head (TTM, eq. 2): softmax(q_i V^T / sqrt(d)) V."""

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(num_tokens, width) * 0.02)
        self.scale = width**-0.5

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer`."""
        logits: Tensor = tokens @ self.queries.T * self.scale  # (B, P, K)
        return logits.softmax(dim=1)


class PoolingSummarizer(Summarizer):
    """Means of K runs of neighbouring tokens, without parameters (TTM's "pooling").

    Adaptive average pooling: run k spans floor(k P / K) to ceil((k + 1) P / K), so runs may share a token,
    and tokens are repeated where K > P.
    """

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer`."""
        batch, count, _ = tokens.shape
        one_hot = torch.eye(count, device=tokens.device, dtype=tokens.dtype)[
            None
        ]  # each token by itself
        return F.adaptive_avg_pool1d(one_hot, self.num_tokens).expand(batch, -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, P, D) -> (B, K, D)."""
        return F.adaptive_avg_pool1d(tokens.transpose(1, 2), self.num_tokens).transpose(1, 2)


def _lecun_normal_(weight: Tensor) -> None:
    """Flax's default for attention kernels: normal, cut off at two deviations, of variance 1 / inputs."""
    deviation = (
        weight.shape[1] ** -0.5 / 0.87962566103423978
    )  # what the cut takes from the variance
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
