"""A read in which the memory chooses what is looked at. Ours, not the TTM paper's.

    Q = Q_0 + S_r(M + P_M)        Z = block(Q; [M ‖ I] + P_read)

Q_0 are r learned queries, and `block` is attention of Q to memory and inputs, with a residual
connection and an MLP. In the published read the weight of a token depends on that token alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.attention import AttentionBlock
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer


class AttendingRead(nn.Module):
    """Attend to [M ‖ I] with r queries, each the sum of a learned one and a summary of the memory."""

    def __init__(
        self,
        recall: PositionedSummarizer,
        block: AttentionBlock,
        query_shape: tuple[int, int],
        num_tokens: int,
        positional_embedding: bool,
    ) -> None:
        """recall: S_r, which adds P_M. query_shape: (r, D). num_tokens: m + N, for P_read."""
        super().__init__()
        self.recall = recall
        self.block = block
        self.queries = nn.Parameter(torch.randn(1, *query_shape) * 0.02)
        position = torch.randn(1, num_tokens, query_shape[1]) * 0.02
        self.position = nn.Parameter(position) if positional_embedding else None

    def forward(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Read (B, r, D) from memory (B, m, D) and inputs (B, N, D)."""
        read: Tensor = self.block.attend(self._queries(memory), self._context(memory, inputs))
        return read

    def weights(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Return the weight of each token of [M ‖ I] in each token that is read, (B, m + N, r).

        They are the mean over the heads and sum to one over m + N.
        """
        query = self.block.queries(self._queries(memory))  # (B, nh, r, hs)
        keys, _ = self.block.keys_values(self._context(memory, inputs))
        key = self.block.heads(keys)  # (B, nh, m + N, hs)
        logits: Tensor = query @ key.transpose(-1, -2) * self.block.head_size**-0.5
        return logits.softmax(dim=-1).mean(dim=1).transpose(1, 2)

    def _queries(self, memory: Tensor) -> Tensor:
        queries: Tensor = self.queries + self.recall(memory)
        return queries

    def _context(self, memory: Tensor, inputs: Tensor) -> Tensor:
        tokens = torch.cat([memory, inputs], dim=1)
        return tokens if self.position is None else tokens + self.position
