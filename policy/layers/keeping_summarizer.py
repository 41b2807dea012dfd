"""A summary whose slots start by keeping themselves. Ours, not the TTM paper's."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.token_learner import LogitSummarizer, Summarizer


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
