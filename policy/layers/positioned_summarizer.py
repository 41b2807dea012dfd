"""Token summarisation of several groups of tokens, with a learned position embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.token_learner import Summarizer


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
