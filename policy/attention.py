"""Multi-head attention, the Transformer encoder of ViT, and rotary position embedding.

Query, key and value may share one matrix product. Each is initialised by itself, so that sharing does
not change the distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError
from ttm.policy.layers import Mlp, layer_norm


def head_size(width: int, num_heads: int, where: str) -> int:
    """Return the number of channels of each head.

    Raises `UserError`, which calls the module `where`, if `num_heads` does not divide `width`.
    """
    if width % num_heads:
        raise UserError(
            f"{where} has {num_heads} heads, which do not divide the width {width}; "
            f"give a width that is a multiple of {num_heads}, or another number of heads"
        )
    return width // num_heads


def initialize_projections(*layers: nn.Linear) -> None:
    """Initialise each D x D map of `layers` by Xavier's uniform distribution, and set biases to 0.

    A layer of shape (D, n D) holds n maps that share one matrix product.
    """
    for layer in layers:
        for weight in layer.weight.chunk(layer.out_features // layer.in_features):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(layer.bias)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Reshape (B, S, D) to (B, nh, S, hs)."""
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape (B, nh, S, hs) to (B, S, D)."""
    return x.transpose(1, 2).flatten(-2)


class AttentionBlock(nn.Module):
    """Compute x + Attention(LN x; keys, values), then x + MLP(LN x).

    The caller passes keys and values, so that it can keep them from tick to tick, and decides what
    the queries see: `block(x, *block.keys_values(context))` is cross-attention to `context`, and
    `block(x, *block.keys_values(x))` is self-attention.
    """

    def __init__(
        self, width: int, num_heads: int, mlp_size: int, where: str = "the attention block"
    ) -> None:
        """`where` names the module in the error for a `num_heads` that does not divide `width`."""
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size(width, num_heads, where)
        self.query_norm = layer_norm(width)
        self.query = nn.Linear(width, width)
        self.context_norm = layer_norm(width)
        self.key_value = nn.Linear(width, 2 * width)  # one matrix product for both
        self.out = nn.Linear(width, width)
        initialize_projections(self.query, self.key_value, self.out)
        self.mlp_norm = layer_norm(width)
        self.mlp = Mlp(width, mlp_size, width)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Run the whole block.

        x: (B, S, D); keys and values: (B, P, D); mask: (B or 1, 1, S, P) bool, True where a query
        sees a key. Returns (B, S, D).
        """
        mixed = F.scaled_dot_product_attention(
            self.queries(x), self.heads(keys), self.heads(values), attn_mask=mask
        )
        return self.finish(x, mixed)

    def attend(self, x: Tensor, context: Tensor) -> Tensor:
        """Run the whole block for x, (B, S, D), on a context, (B, P, D), that nobody keeps."""
        return self(x, *self.keys_values(context))

    def keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise context of shape (..., D) and return its keys and values, (..., D) each."""
        keys, values = self.key_value(self.context_norm(context)).chunk(2, dim=-1)
        return keys, values

    def queries(self, x: Tensor) -> Tensor:
        """Normalise x of shape (B, S, D) and return its queries, (B, nh, S, hs)."""
        return self.heads(self.query(self.query_norm(x)))

    def heads(self, x: Tensor) -> Tensor:
        """Reshape (B, S, D) to (B, nh, S, hs)."""
        return split_heads(x, self.num_heads)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Run what follows attention, given its result `mixed`, (B, nh, S, hs), for x, (B, S, D)."""
        x = x + self.out(merge_heads(mixed))
        return x + self.mlp(self.mlp_norm(x))


class SelfAttention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size(width, num_heads, "the Transformer")
        self.qkv = nn.Linear(width, 3 * width)  # one matrix product for query, key and value
        self.out = nn.Linear(width, width)
        initialize_projections(self.qkv, self.out)

    def forward(self, x: Tensor, outputs: int | None = None) -> Tensor:
        """Map x of shape (B, N, D) to (B, N, D), or to the first `outputs` of the N tokens."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_size))  # (B, N, 3, nh, hs)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()  # each (B, nh, N, hs)
        mixed = F.scaled_dot_product_attention(query[:, :, :outputs], key, value)
        return self.out(merge_heads(mixed))


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
        return x + self.mlp(self.mlp_norm(x))


class TransformerEncoder(nn.Module):
    """The Transformer encoder of ViT (Dosovitskiy et al. 2021) over `num_tokens` tokens, as in Scenic.

    It normalises before attention and MLP, adds a learned position embedding to its input, ends with
    a LayerNorm and has no dropout.
    """

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
        return self.norm(x[:, : self.num_outputs])


LONGEST_WAVE = 10_000
"""RoFormer's constant: the slowest channels turn by about one radian in so many positions."""

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of the angle of each pair of channels."""


def waves(positions: Tensor, size: int) -> Rotation:
    """Return cosine and sine of the angles at `positions`, for vectors of `size` channels.

    positions: (...) int64. Returns (..., ceil(size / 2)) each, in float64: in float32 the error of
    a large angle would exceed that of all other operations.
    """
    pairs = torch.arange((size + 1) // 2, device=positions.device, dtype=torch.float64)
    angle = positions.unsqueeze(-1).to(torch.float64) * LONGEST_WAVE ** (-2 * pairs / size)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair of channels of x, (B, nh, S, hs), by the angle of its token (RoFormer: Su 2021).

    The product of rotated queries and keys depends on the difference of their positions alone.
    rotation: cosine and sine, each of a shape that broadcasts to (B, nh, S, hs / 2). Channel i is
    paired with channel i + hs / 2.
    """
    cosine, sine = rotation
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)
