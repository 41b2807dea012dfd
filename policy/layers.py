"""The layers that cores, vision and heads share: MLP, MLP-Mixer, attention, and the encoder of ViT."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.errors import UserError

LAYER_NORM_EPS = 1e-6
"""Flax's default, which the authors' weights were trained with. PyTorch's own default is 1e-5."""


def layer_norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm over the last axis, of `width` channels."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)


class Mlp(nn.Module):
    """Dense(in, hidden), GELU by its tanh approximation, as the TTM authors have it, Dense(hidden, out)."""

    def __init__(self, in_size: int, hidden_size: int, out_size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_size, hidden_size)
        self.out = nn.Linear(hidden_size, out_size)
        for layer in (self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in) to (..., out)."""
        return self.out(F.gelu(self.hidden(x), approximate="tanh"))


class MixerBlock(nn.Module):
    """Add an MLP over the tokens of LN x, per channel, then an MLP over the channels of LN x."""

    def __init__(self, width: int, num_tokens: int, token_mixing_size: int, mlp_size: int) -> None:
        super().__init__()
        self.token_norm = layer_norm(width)
        self.token_mixing = Mlp(num_tokens, token_mixing_size, num_tokens)
        self.channel_norm = layer_norm(width)
        self.channel_mixing = Mlp(width, mlp_size, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (B, N, D) to (B, N, D)."""
        x = x + self.token_mixing(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mixing(self.channel_norm(x))


class MlpMixer(nn.Module):
    """An MLP-Mixer (Tolstikhin et al. 2021) over `num_tokens` tokens, as in Scenic: no dropout."""

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, token_mixing_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        sizes = width, num_tokens, token_mixing_size, mlp_size
        self.blocks = nn.ModuleList(MixerBlock(*sizes) for _ in range(num_layers))
        self.norm = layer_norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D)."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def head_size(width: int, num_heads: int, where: str) -> int:
    """Return the channels of each head. Raises `UserError`, which calls the module `where`."""
    if width % num_heads:
        heads = f"{num_heads} heads, which do not divide the width {width}"
        raise UserError(f"{where} has {heads}; give another number")
    return width // num_heads


def initialize_projections(*layers: nn.Linear) -> None:
    """Initialise each of the n D x D maps of layers (D, n D) by Xavier, and set biases to 0.

    Sharing one matrix product thus does not change the distribution.
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
        """Run the whole block: x, (B, S, D), with keys and values, (B, P, D), to (B, S, D).

        mask: (B or 1, 1, S, P) bool, True where a query sees a key.
        """
        keys, values = self.heads(keys), self.heads(values)
        mixed = F.scaled_dot_product_attention(self.queries(x), keys, values, attn_mask=mask)
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
        """num_outputs: so many of the first tokens are computed by the last block; None for all."""
        super().__init__()
        self.num_outputs = num_outputs
        self.position = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        sizes = width, num_heads, mlp_size
        self.blocks = nn.ModuleList(EncoderBlock(*sizes) for _ in range(num_layers))
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D), or to (B, num_outputs, D)."""
        x = tokens + self.position
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, self.num_outputs if number == len(self.blocks) else None)
        return self.norm(x[:, : self.num_outputs])


class OptionalVector(nn.Module):
    """Map a vector to one token by an MLP. A learned token replaces it where it is not valid."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(size, width, width)
        self.none = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, vector: Tensor, valid: Tensor | None) -> Tensor:
        """Map (B, T, K) to (B, T, 1, D). valid: (B, T) bool, or None for True everywhere."""
        token = self.mlp(vector)
        if valid is not None:
            token = torch.where(valid.unsqueeze(-1), token, self.none)
        return token.unsqueeze(2)


class ScalarCode(nn.Module):
    """Map a number to a vector by an MLP. The vector is 0 at first, so that adding it changes nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(1, width, width)
        nn.init.zeros_(self.mlp.out.weight)

    def forward(self, value: Tensor) -> Tensor:
        """Map value (B, T), of order 1, to (B, T, 1, D)."""
        return self.mlp(value[..., None, None])

    def rescale(self, factor: float) -> None:
        """From now on, map each value to the vector that `factor` times the value was mapped to."""
        with torch.no_grad():
            self.mlp.hidden.weight.mul_(factor)


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Return the entries of x that each row of `index` names.

    x: (B, T, ...); index: (B, S) int64, values in [0, T). Returns (B, S, ...), where entry [b, s]
    is `x[b, index[b, s]]`.
    """
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))


def position_waves(grid: tuple[int, int], width: int) -> Tensor:
    """Return the position embedding of the cells of a map, (h * w, D).

    One half of the channels are sines and cosines of the row, the other half of the column. The
    waves range from a quarter wave over the map, which orders all positions, to one of two cells.
    """
    places = torch.meshgrid(*(torch.arange(size) + 0.5 for size in grid), indexing="ij")
    axes = []
    for place, size, channels in zip(places, grid, (width // 2, width - width // 2), strict=True):
        last = math.log2(max(size / 2, 0.5))
        cycles = torch.logspace(-2, last, (channels + 1) // 2, base=2.0)
        angle = 2 * math.pi * place.flatten()[:, None] / size * cycles  # (h * w, channels / 2)
        axes.append(torch.cat([angle.sin(), angle.cos()], dim=1)[:, :channels])
    return torch.cat(axes, dim=1)


LONGEST_WAVE = 10_000
"""RoFormer's constant: the slowest channels turn by about one radian in so many positions."""

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of the angle of each pair of channels."""


def waves(positions: Tensor, size: int) -> Rotation:
    """Return cosine and sine of the angles at `positions`, for vectors of `size` channels.

    positions: (...) int64. Returns (..., ceil(size / 2)) each, in float64, for the sake of large angles.
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
