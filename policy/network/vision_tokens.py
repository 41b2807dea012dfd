"""Feature maps -> a few tokens for each camera that still say where things are (TokenLearner after RT-1's FiLM net)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.token_learner import LAYER_NORM_EPS, TokenSummarizer


class CameraTokens(nn.Module):
    """One camera's map (C, h, w) -> K tokens of width D.

    The position embedding is part of what is summed: a token whose weights rest on an object carries the
    mean position of that object (a spatial softmax in D dimensions).
    """

    def __init__(
        self, num_channels: int, grid: tuple[int, int], width: int, num_tokens: int
    ) -> None:
        super().__init__()
        self.project = nn.Linear(num_channels, width)
        self.camera = nn.Parameter(torch.randn(width) * 0.02)
        self.position = nn.Parameter(position_waves(grid, width))
        self.summarizer = TokenSummarizer(width, num_tokens)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, 2 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """features: (B, C, h, w) -> (B, K, D)."""
        tokens = self.project(features.flatten(2).transpose(1, 2))  # (B, h * w, D)
        summary = self.summarizer(tokens + self.position + self.camera)
        out: Tensor = summary + self.mlp(self.norm(summary))
        return out


def position_waves(grid: tuple[int, int], width: int) -> Tensor:
    """(h * w, D): sines and cosines of the row in one half and of the column in the other.

    From a quarter wave over the map, which orders all positions, to a wave of two cells.
    """
    rows, columns = torch.meshgrid(*(torch.arange(size) + 0.5 for size in grid), indexing="ij")
    axes = []
    for place, size, channels in (
        (rows, grid[0], width // 2),
        (columns, grid[1], width - width // 2),
    ):
        cycles = torch.logspace(
            math.log2(0.25), math.log2(max(size / 2, 0.5)), (channels + 1) // 2, base=2.0
        )
        angle = 2 * math.pi * place.flatten()[:, None] / size * cycles  # (h * w, channels / 2)
        axes.append(torch.cat([angle.sin(), angle.cos()], dim=1)[:, :channels])
    return torch.cat(axes, dim=1)
