"""The Transformer encoder that processes TTM's read tokens (ViT's, Dosovitskiy et al. 2021, as in Scenic).

Pre-LayerNorm, learned position embedding at the input, LayerNorm at the end, no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS


def head_size(width: int, num_heads: int, where: str) -> int:
    """Channels of each head; `UserError` if the heads do not share the width evenly."""
    if width % num_heads:
        raise UserError(
            f"{where} has {num_heads} heads, which do not divide the width {width}; "
            f"give a width that is a multiple of {num_heads}, or another number of heads"
        )
    return width // num_heads


class SelfAttention(nn.Module):
    """Multi-head self-attention without a mask; query, key and value share one matrix product."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size(width, num_heads, "the Transformer")
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        for weight in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D) -> (B, N, D)."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_size))  # (B, N, 3, nh, hs)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()  # each (B, nh, N, hs)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))  # (B, N, D)
        return out


class EncoderBlock(nn.Module):
    """x + Attention(LN x), then x + MLP(LN x)."""

    def __init__(self, width: int, num_heads: int, mlp_size: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attention = SelfAttention(width, num_heads)
        self.mlp_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D) -> (B, N, D)."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TransformerProcessor(nn.Module):
    """TTM's Process(Z) by a Transformer encoder over the `num_tokens` read tokens."""

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, num_heads: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, num_heads, mlp_size) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, R, D) -> (B, R, D)."""
        x = tokens + self.position
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out
