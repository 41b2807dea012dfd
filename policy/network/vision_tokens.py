"""Summarise the feature map of each camera to a few tokens that hold where things are.

TokenLearner (Ryoo et al. 2021) after a FiLM network, as in RT-1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.layers.linear import linear
from ttm.policy.layers.mlp import Mlp
from ttm.policy.layers.norms import layer_norm
from ttm.policy.layers.token_learner import TokenSummarizer
from ttm.policy.network.film_network import FilmNetwork
from ttm.policy.network.presets import PolicyConfig
from ttm.policy.spec import PolicySpec


class CameraTokens(nn.Module):
    """Map the feature map of one camera, (C, h, w), to K tokens of D channels.

    A position embedding is part of the cells that are summed. So a token whose weights lie on an
    object holds the mean position of that object (a spatial softmax in D dimensions).
    """

    def __init__(
        self, num_channels: int, grid: tuple[int, int], width: int, num_tokens: int
    ) -> None:
        super().__init__()
        self.project = nn.Linear(num_channels, width)
        self.camera = nn.Parameter(torch.randn(width) * 0.02)
        self.position = nn.Parameter(position_waves(grid, width))
        self.summarizer = TokenSummarizer(width, num_tokens)
        self.norm = layer_norm(width)
        self.mlp = Mlp(width, 2 * width, width)

    def forward(self, features: Tensor, folded: bool = False) -> Tensor:
        """Map features, (B, C, h, w), to tokens, (B, K, D).

        folded: compute the same but for rounding, in less time where gradients are asked for,
        because the D channels of the cells are never made.
        """
        cells = features.flatten(2).transpose(1, 2)  # (B, h * w, C)
        if folded:
            with torch.autocast(cells.device.type, enabled=False):  # variances need all digits
                summary = self._folded_summary(cells)
        else:
            summary = self.summarizer(self.project(cells) + self.position + self.camera)
        out: Tensor = summary + self.mlp(self.norm(summary))
        return out

    def _folded_summary(self, cells: Tensor) -> Tensor:
        """Return the summary, (B, K, D), of the cells x = W f + e, whose features f are (B, P, C).

        The mean of W f + e over the D channels goes out of W and e beforehand, and its variance is
        a quadratic form of f. So the normalised cells need not exist: the hidden layer of the
        summariser's MLP is a linear map of f / deviation, and the sums of the cells are W times the
        sums of f, plus those of e.
        """
        norm, mlp = self.summarizer.norm, self.summarizer.mlp
        weight, offset = self.project.weight, self.project.bias + self.position + self.camera
        centred_weight = weight - weight.mean(dim=0)  # (D, C)
        centred_offset = offset - offset.mean(dim=1, keepdim=True)  # (P, D)
        square = centred_weight.T @ centred_weight / len(weight)  # (C, C)
        mixed = centred_offset @ centred_weight * (2 / len(weight))  # (P, C)
        constant = centred_offset.square().mean(dim=1, keepdim=True)  # (P, 1)
        variance = (cells * (cells @ square + mixed)).sum(dim=-1, keepdim=True) + constant
        scale = (variance.clamp_min(0) + norm.eps).rsqrt()  # (B, P, 1); rounding can go below 0
        to_hidden = mlp.hidden.weight * norm.weight  # (H, D)
        bias = mlp.hidden.bias + mlp.hidden.weight @ norm.bias
        centred = linear(cells, to_hidden @ centred_weight) + centred_offset @ to_hidden.T
        hidden = torch.addcmul(bias, scale, centred)  # (B, P, H)
        weights = mlp.out(F.gelu(hidden, approximate="tanh")).softmax(dim=1).transpose(1, 2)
        summary: Tensor = F.linear(weights @ cells, weight) + weights @ offset
        return summary


def position_waves(grid: tuple[int, int], width: int) -> Tensor:
    """Return the position embedding of the cells of a map, (h * w, D).

    One half of the channels are sines and cosines of the row, the other half of the column. The
    waves range from a quarter wave over the map, which orders all positions, to one of two cells.
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


def build_camera_tokens(
    spec: PolicySpec, config: PolicyConfig, vision: FilmNetwork | None
) -> nn.ModuleList:
    """Return one `CameraTokens` for each camera of a robot, for the feature maps of `vision`."""
    stride = config.vision.reduction
    return nn.ModuleList(
        CameraTokens(
            vision.num_channels,
            (-(-camera.height // stride), -(-camera.width // stride)),
            config.width,
            config.tokens_per_camera,
        )
        for camera in spec.cameras
        if vision is not None
    )
