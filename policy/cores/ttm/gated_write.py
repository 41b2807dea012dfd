"""A write with a gate for each channel of each slot. Ours, not the TTM paper's.

    M' = g * M + (1 - g) * S        S = S_m([M ‖ I ‖ O] + P_write)        g = sigmoid(W LN[M ; S] + b)

[M ; S] are the 2 D channels of what a slot holds and of its candidate. W is shared by the slots, and
b is one value for each channel of each slot. At the start b spreads the slots evenly over time
scales from 2 to `max_ticks` ticks (chrono initialisation, Tallec and Ollivier 2018): slot j keeps
u / (1 + u) of itself a tick, b_j = log u with u in [1, max_ticks - 1].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.linear import Linear
from ttm.policy.layers.norms import layer_norm
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer


class GatedWrite(nn.Module):
    """Mix each slot with its candidate, which a summary of all tokens makes.

    Candidates of different slots are different sums, so slots that start identical do not stay so.
    """

    def __init__(self, candidate: PositionedSummarizer, width: int, bias: Tensor) -> None:
        """candidate: S_m, which adds P_write. bias: b at the start, (m, D)."""
        super().__init__()
        self.candidate = candidate
        self.norm = layer_norm(2 * width)
        self.gate = Linear(2 * width, width, bias=False)
        self.gate_bias = nn.Parameter(bias)

    def forward(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); others: inputs (B, N, D), and outputs (B, r, D) if the write sees them.
        """
        return self.mixed(memory, self.candidate(memory, *others))

    def mixed(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return what the gates make of the slots and their candidates. All tensors are (B, m, D)."""
        gates = self.gates(memory, candidate)
        # Under autocast both are of lower precision than the memory, which keeps its own.
        return torch.lerp(candidate.to(memory.dtype), memory, gates.to(memory.dtype))

    def gates(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return g, the portion of each value that is kept. All tensors are (B, m, D)."""
        pair = self.norm(torch.cat([memory, candidate], dim=-1))
        gates: Tensor = (self.gate(pair) + self.gate_bias).sigmoid()
        return gates

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the weight of each token of [memory ‖ others] in each new slot, (B, P, m).

        They sum to one over P. The gates count by their mean over the channels.
        """
        tokens = self.candidate.positioned(memory, *others)
        gates = self.gates(memory, self.candidate.summarizer(tokens)).mean(dim=-1)  # (B, m)
        kept = F.pad(torch.diag_embed(gates), (0, 0, 0, tokens.shape[1] - memory.shape[1]))
        return kept + (1 - gates).unsqueeze(1) * self.candidate.summarizer.weights(tokens)


def chrono_bias(count: int, max_ticks: float) -> Tensor:
    """Return log u for u evenly spaced in [1, max_ticks - 1], (count, 1)."""
    return torch.linspace(1, max_ticks - 1, count).log().unsqueeze(1)
