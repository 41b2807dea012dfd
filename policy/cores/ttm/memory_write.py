"""Ways to write the memory other than by summarisation, which is `token_turing.PositionedSummarizer`.

All are called as write(memory, inputs, outputs) -> new memory; these two leave the inputs aside.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS

WRITE_TOKENS, WRITE_HIDDEN = 8, 64
"""T and the width of the inner MLPs, as the authors' code has them."""


class WriteVectors(nn.Module):
    """The r output tokens -> T vectors to erase by, or to add: an MLP over tokens, then one over channels."""

    def __init__(self, width: int, num_inputs: int, num_tokens: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.token_mlp = Mlp(num_inputs, hidden, num_tokens)
        self.channel_mlp = Mlp(width, hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, r, D) -> (B, T, D)."""
        mixed = self.token_mlp(self.norm(tokens).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.channel_mlp(mixed)
        return out


class EraseAddWrite(nn.Module):
    """Erases from the memory's slots and adds to them, after the Neural Turing Machine (Graves et al. 2014).

        M'_i = M_i * prod_t (1 - W_t,i E_t) + mean_t (1 - W_t,i A_t)

    W: softmax over the m slots of an MLP of M; E, A: T vectors each, from the output tokens. The authors' code has the
    "1 -" in the second term and no sigmoid on E; the Neural Turing Machine would add sum_t W_t,i A_t. So nothing bounds
    the memory: from fresh weights its values grow to some hundreds in 50 steps, and 300 steps are out of reach.

    W sees the memory alone. Slots that are identical get identical weights and stay identical for ever:
    the memory must not start at zero. Any memory size m fits.
    """

    def __init__(
        self,
        width: int,
        process_size: int,
        num_tokens: int = WRITE_TOKENS,
        hidden: int = WRITE_HIDDEN,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.select = Mlp(width, hidden, num_tokens)
        self.erase = WriteVectors(width, process_size, num_tokens, hidden)
        self.add = WriteVectors(width, process_size, num_tokens, hidden)

    def weights(self, memory: Tensor) -> Tensor:
        """memory: (B, m, D) -> W (B, m, T): where each of the T vectors goes; sums to one over m."""
        logits: Tensor = self.select(self.norm(memory))
        return logits.softmax(dim=1)

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """memory: (B, m, D); inputs: not used; outputs: (B, r, D) -> new memory (B, m, D)."""
        weights = self.weights(memory)
        erase, add = self.erase(outputs), self.add(outputs)  # (B, T, D)
        kept: Tensor = (1 - weights.unsqueeze(-1) * erase.unsqueeze(1)).prod(
            dim=2
        )  # (B, m, T, D) -> (B, m, D)
        added: Tensor = 1 - weights @ add / add.shape[1]  # the mean over t of 1 - W_t A_t
        return memory * kept + added


class ConcatenationWrite(nn.Module):
    """A bounded history: the newest m tokens of [M ‖ O], oldest first (TTM's "concatenation")."""

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """memory: (B, m, D); inputs: not used; outputs: (B, r, D) -> new memory (B, m, D)."""
        size, new = memory.shape[1], outputs.shape[1]
        return torch.cat([memory[:, new:], outputs[:, -size:]], dim=1)
