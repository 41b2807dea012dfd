"""The Transformer encoder of ViT (Dosovitskiy et al. 2021), as in Scenic.

It normalises before attention and MLP, adds a learned position embedding to its input, ends with a
LayerNorm and has no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttm.policy.layers.attention import SelfAttention
from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm


class EncoderBlock(nn.Module):
    """Compute x + Attention(LN x), then x + MLP(LN x)."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.attention_norm = layer_norm(width)
        self.attention = SelfAttention(width, num_heads)
        self.mlp_norm = layer_norm(width)
        self.mlp = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor, outputs: int | None = None) -> Tensor:
        """Map x of shape (B, N, D) to (B, N, D), or to the first `outputs` of the N tokens."""
        x = x[:, :outputs] + self.attention(self.attention_norm(x), outputs)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TransformerEncoder(nn.Module):
    """A Transformer encoder over `num_tokens` tokens."""

    def __init__(
        self,
        width: int,
        num_tokens: int,
        num_layers: int,
        num_heads: int,
        mlp_size: int,
        num_outputs: int | None = None,
    ) -> None:
        """num_outputs: the first so many tokens are returned; None for all.

        The last block then computes only these, from all tokens.
        """
        super().__init__()
        self.num_outputs = num_outputs
        self.position = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, num_heads, mlp_size) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D), or to (B, num_outputs, D)."""
        x = tokens + self.position
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, self.num_outputs if number == len(self.blocks) else None)
        out: Tensor = self.norm(x[:, : self.num_outputs])
        return out
