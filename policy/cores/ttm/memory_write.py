"""Ways to write the memory other than by a summary, for which see `PositionedSummarizer`.

All writes are called as write(memory, inputs, outputs) and return the new memory. These two do not
use the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm

WRITE_TOKENS, WRITE_HIDDEN = 8, 64
"""T, and the hidden width of the MLPs of `EraseAddWrite`, as in the authors' code."""


class WriteVectors(nn.Module):
    """Map the r output tokens to T vectors, by an MLP over tokens and one over channels."""

    def __init__(self, width: int, num_inputs: int, num_tokens: int, hidden: int) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.token_mlp = Mlp(num_inputs, hidden, num_tokens)
        self.channel_mlp = Mlp(width, hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, r, D) to (B, T, D)."""
        mixed = self.token_mlp(self.norm(tokens).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.channel_mlp(mixed)
        return out


class EraseAddWrite(nn.Module):
    """Erase from the memory slots and add to them, after the Neural Turing Machine (Graves 2014).

        M'_i = M_i * prod_t (1 - W_t,i E_t) + mean_t (1 - W_t,i A_t)

    W is the softmax over the m slots of an MLP of M. E and A are T vectors each, computed from the
    output tokens. The "1 -" of the second term and the missing sigmoid on E are those of the authors'
    code; the Neural Turing Machine would add sum_t W_t,i A_t. So the memory is not bounded: with
    fresh weights its values grow to some hundreds in 50 steps, and overflow before step 300.

    W depends on the memory alone, so slots that are identical stay identical: the memory must not
    start at zero. Any memory size m works.
    """

    def __init__(
        self,
        width: int,
        process_size: int,
        num_tokens: int = WRITE_TOKENS,
        hidden: int = WRITE_HIDDEN,
    ) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.select = Mlp(width, hidden, num_tokens)
        self.erase = WriteVectors(width, process_size, num_tokens, hidden)
        self.add = WriteVectors(width, process_size, num_tokens, hidden)

    def weights(self, memory: Tensor) -> Tensor:
        """Return W, the slots to which each of the T vectors goes.

        memory: (B, m, D). Returns (B, m, T), which sums to one over m.
        """
        logits: Tensor = self.select(self.norm(memory))
        return logits.softmax(dim=1)

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); inputs: not used; outputs: (B, r, D).
        """
        weights = self.weights(memory)
        erase, add = self.erase(outputs), self.add(outputs)  # (B, T, D)
        factors = 1 - weights.unsqueeze(-1) * erase.unsqueeze(1)  # (B, m, T, D)
        kept: Tensor = factors.prod(dim=2)  # (B, m, D)
        added: Tensor = 1 - weights @ add / add.shape[1]  # the mean over t of 1 - W_t A_t
        return memory * kept + added


class ConcatenationWrite(nn.Module):
    """Keep the newest m tokens of [M ‖ O], oldest first (the paper's "concatenation")."""

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); inputs: not used; outputs: (B, r, D).
        """
        size, new = memory.shape[1], outputs.shape[1]
        return torch.cat([memory[:, new:], outputs[:, -size:]], dim=1)
