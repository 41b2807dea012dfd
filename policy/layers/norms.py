"""The layer normalisation that all layers and cores use."""

from __future__ import annotations

from torch import nn

LAYER_NORM_EPS = 1e-6
"""Flax's default, which the authors' weights were trained with. PyTorch's own default is 1e-5."""


def layer_norm(width: int) -> nn.LayerNorm:
    """Return a LayerNorm over the last axis, of `width` channels."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)
