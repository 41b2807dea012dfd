"""A convolutional network with FiLM (Perez et al. 2018) after every block, as in RT-1 and BC-Z."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ttm.policy.network.config import VisionConfig

Pixels = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of the three colours, as portions of white."""
IMAGENET_PIXELS: Pixels = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GROUP_SIZE = 8
"""Channels per group of GroupNorm. The numbers of channels of the networks are multiples of it."""


class Film(nn.Module):
    """Compute (1 + gamma) * x + beta, with gamma and beta of each channel from a condition.

    Both are zero at initialisation, so that inserting the module does not change a network.
    """

    def __init__(self, condition_size: int, num_channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(condition_size, 2 * num_channels)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map x, (B * n, C, H, W), to the same shape.

        condition: (B, E); each row applies to n consecutive images.
        """
        repeats = x.shape[0] // condition.shape[0]
        projected = self.project(condition).repeat_interleave(repeats, dim=0)[..., None, None]
        gamma, beta = projected.chunk(2, dim=1)
        return torch.addcmul(beta, x, 1 + gamma)


class FilmNetwork(nn.Module):
    """Map images and a condition (the instruction) to a feature map of `num_channels` channels."""

    pixel_mean: Tensor
    pixel_std: Tensor
    weights_used: str
    """Which weights the network began with, in words."""

    def __init__(
        self,
        config: VisionConfig,
        condition_size: int,
        stem: nn.Module,
        blocks: Sequence[nn.Module],
        channels: Sequence[int],
        pixels: Pixels = IMAGENET_PIXELS,
    ) -> None:
        """Put FiLM after each of `blocks`, which are called with `drop_connect_rate`.

        channels: the channels that each block returns. pixels: what images are normalised by.
        """
        super().__init__()
        self.drop_connect_rate = config.drop_connect_rate
        self.stem = stem
        self.blocks = nn.ModuleList(blocks)
        self.films = nn.ModuleList(Film(condition_size, count) for count in channels)
        self.num_channels: int = channels[-1]
        if config.norm == "group":
            _replace_batch_norm(self)
        for name, values in zip(("pixel_mean", "pixel_std"), pixels, strict=True):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor, condition: Tensor) -> Tensor:
        """Return the feature map, (B * n, C, H / reduction, W / reduction).

        images: (B * n, 3, H, W) uint8, or float in [0, 1]; condition: (B, E).
        """
        scaled = images / 255 if images.dtype == torch.uint8 else images
        scaled = (scaled - self.pixel_mean) / self.pixel_std
        x: Tensor = self.stem(scaled.contiguous(memory_format=torch.channels_last))
        for index, (block, film) in enumerate(zip(self.blocks, self.films, strict=True)):
            rate = self.drop_connect_rate * index / len(self.blocks)
            x = film(block(x, drop_connect_rate=rate), condition)
        return x


def _replace_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            setattr(module, name, nn.GroupNorm(max(1, channels // GROUP_SIZE), channels, eps=1e-3))
        else:
            _replace_batch_norm(child)
