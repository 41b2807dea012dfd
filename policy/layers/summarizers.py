"""Further token summarisers of the TTM paper: learned queries, with and without heads, pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.attention import head_size, merge_heads, split_heads
from ttm.policy.layers.token_learner import LogitSummarizer, Summarizer

NUM_HEADS = 8
"""The number of heads of the authors' TokenLearnerMHA. It does not follow the Transformer's."""


class AttentionSummarizer(Summarizer):
    """K learned queries attend to the tokens in several heads (the authors' `TokenLearnerMHA`).

    There is no LayerNorm and no residual connection. The result passes through projections, so it
    is not the sum of the tokens by `weights`, which are the mean over the heads.
    """

    def __init__(self, width: int, num_tokens: int, num_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size(width, num_heads, "the summariser 'mha'")
        self.queries = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)  # one matrix product for both
        self.out = nn.Linear(width, width)
        for layer in (self.query, self.key_value, self.out):
            _lecun_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer.weights`."""
        query, key, _ = self._heads(tokens)
        logits: Tensor = query @ key.transpose(-1, -2) * self.head_size**-0.5  # (B, nh, K, P)
        return logits.softmax(dim=-1).mean(dim=1).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Summarise tokens of shape (B, P, D) to (B, K, D)."""
        mixed = F.scaled_dot_product_attention(*self._heads(tokens))  # (B, nh, K, hs)
        out: Tensor = self.out(merge_heads(mixed))
        return out

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query, (B, nh, K, hs), and key and value, (B, nh, P, hs) each."""
        query = split_heads(self.query(self.queries), self.num_heads)
        both = self.key_value(tokens).unflatten(-1, (2, self.num_heads, self.head_size))
        key, value = both.permute(2, 0, 3, 1, 4).unbind()  # from (B, P, 2, nh, hs)
        return query.expand(tokens.shape[0], -1, -1, -1), key, value


class QuerySummarizer(LogitSummarizer):
    """Compare K learned queries with the tokens, in one head: softmax(q_i V^T / sqrt(d)) V.

    This is eq. 2 of the TTM paper; there are no projections.
    """

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(num_tokens, width) * 0.02)
        self.scale = width**-0.5

    def logits(self, tokens: Tensor) -> Tensor:
        """See `LogitSummarizer.logits`."""
        logits: Tensor = tokens @ self.queries.T * self.scale
        return logits


class PoolingSummarizer(Summarizer):
    """Average K runs of neighbouring tokens (the paper's "pooling"); there are no parameters.

    This is adaptive average pooling: run k spans floor(k P / K) to ceil((k + 1) P / K), so runs
    may share a token, and tokens are repeated where K > P.
    """

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer.weights`."""
        batch, count, _ = tokens.shape
        # The pooled identity matrix holds the weight of each token.
        identity = torch.eye(count, device=tokens.device, dtype=tokens.dtype)[None]
        return F.adaptive_avg_pool1d(identity, self.num_tokens).expand(batch, -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Summarise tokens of shape (B, P, D) to (B, K, D)."""
        return F.adaptive_avg_pool1d(tokens.transpose(1, 2), self.num_tokens).transpose(1, 2)


def _lecun_normal_(weight: Tensor) -> None:
    """Initialise as Flax does for attention: a normal of variance 1 / inputs, cut at 2 deviations."""
    cut = 0.87962566103423978  # the deviation that remains of 1 after the cut
    deviation = weight.shape[1] ** -0.5 / cut
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
