"""Rotary position embedding (RoFormer, Su et al. 2021).

Queries and keys are rotated by their positions, so that their product depends on the difference
of the positions alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
    """Rotate each pair of channels of x, (B, nh, S, hs), by the angle of its token.

    rotation: cosine and sine, each of a shape that broadcasts to (B, nh, S, hs / 2). Channel i is
    paired with channel i + hs / 2.
    """
    cosine, sine = rotation
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)
