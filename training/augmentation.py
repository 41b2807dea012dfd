"""Image augmentation: a random shift and a random change of colour for each window.

The shift by a few pixels with repeated edges is that of DrQ (Kostrikov et al. 2020). All ticks of a
window get the same change, as a camera neither jumps nor changes its colours within an episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ttm.training.options import AugmentationConfig

RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""From RGB to luminance and two colour axes. Saturation scales the two axes, hue rotates them."""


@dataclass(frozen=True)
class ImageChanges:
    """How the images of one camera are changed in each of B windows."""

    shifts: Tensor
    """(B, 2) int64: pixels down and to the right at which a window's images begin."""
    colours: Tensor
    """(B, 3, 3) float32: the matrix of brightness, saturation and hue."""
    contrast: Tensor
    """(B,) float32: the factor on the distance from the window's mean grey."""

    @classmethod
    def drawn(
        cls, batch: int, size: tuple[int, int], config: AugmentationConfig, rng: np.random.Generator
    ) -> ImageChanges:
        """Draw the changes of `batch` windows, whose images have `size` (height, width)."""
        pads = [min(round(config.shift * side), side - 1) for side in size]
        shifts = np.zeros((2, batch), np.int64)
        if any(pads):
            shifts = np.stack([rng.integers(-pad, pad + 1, batch) for pad in pads])
        colours = _colour_matrices(batch, config, rng)
        contrast = 1 + rng.uniform(-config.contrast, config.contrast, batch)
        return cls(
            torch.from_numpy(shifts.T.copy()),
            torch.from_numpy(colours).float(),
            torch.from_numpy(contrast).float(),
        )

    def of_windows(self, rows: slice) -> ImageChanges:
        """Return the changes of some of the windows."""
        return ImageChanges(self.shifts[rows], self.colours[rows], self.contrast[rows])

    def applied(self, images: Tensor) -> Tensor:
        """Return changed images: (B, T, 3, H, W) uint8, on any device -> the same shape and type."""
        return jitter_colours(shift_images(images, self.shifts), self.colours, self.contrast)


def shift_images(images: Tensor, shifts: Tensor) -> Tensor:
    """Move windows (B, T, 3, H, W) by whole pixels, with repeated edges; see `ImageChanges`."""
    if not shifts.any():
        return images
    if images.device.type != "cpu":
        return gathered_shift(images, shifts.to(images.device))
    shifted = torch.empty_like(images)
    # On a CPU, copying whole blocks is faster than one gather.
    for window, (dy, dx) in enumerate(shifts.tolist()):
        _shift_into(shifted[window], images[window], dy, dx)
    return shifted


def gathered_shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Return what `shift_images` does, in one operation, which suits a GPU."""
    batch, _, _, height, width = images.shape
    pixels = [
        (torch.arange(side, device=images.device) + shift[:, None]).clamp(0, side - 1)  # (B, side)
        for side, shift in zip((height, width), shifts.unbind(1), strict=True)
    ]
    down, right = pixels[0][:, :, None], pixels[1][:, None, :]
    window = torch.arange(batch, device=images.device)[:, None, None]
    return images.permute(0, 3, 4, 1, 2)[window, down, right].permute(0, 3, 4, 1, 2)


def _shift_into(target: Tensor, source: Tensor, dy: int, dx: int) -> None:
    """Set target[..., y, x] to source[..., y + dy, x + dx], or to the nearest edge's value."""
    height, width = source.shape[-2:]
    top, bottom, left, right = max(0, -dy), height - max(0, dy), max(0, -dx), width - max(0, dx)
    target[..., top:bottom, left:right] = source[
        ..., top + dy : bottom + dy, left + dx : right + dx
    ]
    target[..., :top, left:right] = target[..., top : top + 1, left:right]
    target[..., bottom:, left:right] = target[..., bottom - 1 : bottom, left:right]
    target[..., :left] = target[..., left : left + 1]
    target[..., right:] = target[..., right - 1 : right]


def jitter_colours(images: Tensor, colours: Tensor, contrast: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of images (B, T, 3, H, W) uint8.

    All four changes are linear in the colour of a pixel: one matrix product and one offset.
    """
    batch = len(images)
    matrix, contrast = colours.to(images.device), contrast.to(images.device)
    pixels = images.flatten(3)  # (B, T, 3, H*W)
    # A sixteenth of the pixels gives the mean grey well enough.
    mean = pixels[:, :, :, ::16].float().mean(dim=(1, 2, 3))
    offset = (mean * (1 - contrast)).view(batch, 1, 1) + 0.5  # (B, 1, 1)
    changed = torch.empty(pixels.shape, dtype=torch.uint8, device=images.device)
    for target, source, weights, shift in zip(
        changed, pixels, matrix * contrast.view(batch, 1, 1), offset, strict=True
    ):
        _recolour(target, source, weights, shift)
    return changed.view(images.shape)


def _recolour(target: Tensor, source: Tensor, matrix: Tensor, offset: Tensor) -> None:
    """Set target (T, 3, N) to matrix (3, 3) @ source (T, 3, N) + offset (1, 1), cut off at 0 and 255."""
    if source.device.type != "cpu":
        target.copy_((matrix @ source.float()).add_(offset).clamp_(0, 255))
        return
    values, changed = (torch.empty(source.shape[1:]) for _ in range(2))
    for frame, result in zip(source, target, strict=True):
        values.copy_(frame)
        torch.addmm(offset, matrix, values, out=changed)
        result.copy_(changed.clamp_(0, 255).int())


def _colour_matrices(
    batch: int, config: AugmentationConfig, rng: np.random.Generator
) -> np.ndarray:
    """Return (B, 3, 3) matrices of brightness times saturation and hue, the latter two in YIQ."""
    brightness = 1 + rng.uniform(-config.brightness, config.brightness, batch)
    saturation = 1 + rng.uniform(-config.saturation, config.saturation, batch)
    angle = rng.uniform(-config.hue_rad, config.hue_rad, batch)
    turn = np.zeros((batch, 3, 3))
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * np.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = -saturation * np.sin(angle), saturation * np.sin(angle)
    return brightness[:, None, None] * (np.linalg.inv(RGB_TO_YIQ) @ turn @ RGB_TO_YIQ)
