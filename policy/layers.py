"""The layers that cores, vision and heads share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYER_NORM_EPS = 1e-6
"""Flax's default, which the authors' weights were trained with. PyTorch's own default is 1e-5."""


def layer_norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm over the last axis, of `width` channels."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)


class Mlp(nn.Module):
    """Apply Dense(in, hidden), GELU and Dense(hidden, out) to the last axis.

    GELU is computed by its tanh approximation, as in the code of the TTM authors.
    """

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
    """An MLP-Mixer (Tolstikhin et al. 2021) over `num_tokens` tokens, as in Scenic.

    It normalises before each MLP, has no position embedding and no dropout, and ends with a LayerNorm.
    """

    def __init__(
        self, width: int, num_tokens: int, num_layers: int, token_mixing_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            MixerBlock(width, num_tokens, token_mixing_size, mlp_size) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens of shape (B, N, D) to (B, N, D)."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class OptionalVector(nn.Module):
    """Map a vector to one token by an MLP. A learned token replaces it where it is not valid."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mlp = Mlp(size, width, width)
        self.none = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, vector: Tensor, valid: Tensor | None) -> Tensor:
        """Return the token, (B, T, 1, D).

        vector: (B, T, K); valid: (B, T) bool, or None for True everywhere.
        """
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
        cycles = torch.logspace(
            math.log2(0.25), math.log2(max(size / 2, 0.5)), (channels + 1) // 2, base=2.0
        )
        angle = 2 * math.pi * place.flatten()[:, None] / size * cycles  # (h * w, channels / 2)
        axes.append(torch.cat([angle.sin(), angle.cos()], dim=1)[:, :channels])
    return torch.cat(axes, dim=1)
