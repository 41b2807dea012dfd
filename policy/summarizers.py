"""Token summarisation by learned importance weights (TokenLearner, Ryoo et al. 2021).

The module follows version 1.1 of the authors' code.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.attention import head_size, merge_heads, split_heads
from ttm.policy.layers import Mlp, layer_norm


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


# Further token summarisers of the TTM paper: learned queries, with and without heads, pooling.

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


# Token summarisation of several groups of tokens, with a learned position embedding.


class PositionedSummarizer(nn.Module):
    """Concatenate groups of tokens, add a learned position embedding and summarise.

    The embedding is part of the tokens that are summed. Without it the number of tokens is free.
    """

    def __init__(
        self, summarizer: Summarizer, width: int, num_inputs: int, positional_embedding: bool
    ) -> None:
        """`num_inputs` is the number of tokens of all groups together."""
        super().__init__()
        self.summarizer = summarizer
        self.position = (
            nn.Parameter(torch.randn(1, num_inputs, width) * 0.02) if positional_embedding else None
        )

    def forward(self, *groups: Tensor) -> Tensor:
        """Summarise groups of shapes (B, P_i, D), which add up to `num_inputs`, to (B, K, D)."""
        out: Tensor = self.summarizer(self.positioned(*groups))
        return out

    def positioned(self, *groups: Tensor) -> Tensor:
        """Return the tokens that are summed: all groups, with the embedding added, (B, P, D)."""
        tokens = torch.cat(groups, dim=1)
        return tokens if self.position is None else tokens + self.position


# A summary whose slots start by keeping themselves. Ours, not the TTM paper's.


class KeepingSummarizer(Summarizer):
    """Add a learned bias b_j to the logit of token j in summary j, for the first K of the P tokens.

    With logits that are equal otherwise, token j has a weight of `portion` in summary j at the
    start. If the first K tokens are the memory that the summary replaces, the slots keep so much of
    themselves. `portion` lies between 0 and 1.
    """

    def __init__(
        self, summarizer: LogitSummarizer, num_tokens: int, num_inputs: int, portion: float
    ) -> None:
        """`num_tokens` is K, and `num_inputs` the usual P, for which `portion` holds."""
        super().__init__()
        self.summarizer = summarizer
        bias = math.log(portion / (1 - portion) * max(num_inputs - 1, 1))
        self.bias = nn.Parameter(torch.full((num_tokens,), bias))

    def weights(self, tokens: Tensor) -> Tensor:
        """See `Summarizer.weights`."""
        logits = self.summarizer.logits(tokens)  # (B, P, K)
        own = self.bias * torch.eye(len(self.bias), device=logits.device, dtype=logits.dtype)
        bias = F.pad(own, (0, 0, 0, tokens.shape[1] - len(self.bias)))  # (P, K)
        return (logits + bias).softmax(dim=1)
