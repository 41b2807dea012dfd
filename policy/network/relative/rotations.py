"""Rotations: from the ways in which they are written to matrices, and back.

All functions take any leading dimensions, and let NaN through. Matrices are multiplied by
elementwise operations, which autocast leaves in their precision.

Zhou et al. 2019, "On the Continuity of Rotation Representations in Neural Networks": no way to write
rotations by fewer than five numbers is continuous. Six numbers, two columns of the matrix that need
not be orthonormal yet, are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.network.relative.forms import QUATERNIONS

SMALLEST = 1e-12
"""Lengths below this count as 0."""


def matrices(values: Tensor, form: str) -> Tensor:
    """Return the rotations that `values`, (..., n), stand for, (..., 3, 3). form: of `ROTATION_SIZES`."""
    return _READERS[form](values)


def written(rotations: Tensor, form: str) -> Tensor:
    """Return rotations (..., 3, 3) as values (..., n).

    Of a quaternion's two signs that with a real part from 0 on is taken; angles are from -pi to pi, and
    rotation vectors have a length up to pi.
    """
    return _WRITERS[form](rotations)


def nearest(values: Tensor, near: Tensor, form: str) -> Tensor:
    """Return what stands for the same rotations as `values` and is nearest to `near`, (..., n) each."""
    if form in QUATERNIONS:
        return torch.where((values * near).sum(-1, keepdim=True) < 0, -values, values)
    if form == "rpy":
        return values + 2 * math.pi * ((near - values) / (2 * math.pi)).round()
    if form == "rotvec":
        angle = _length(values)
        axis = values / angle.clamp_min(SMALLEST)
        along = (near * axis).sum(-1, keepdim=True)
        return values + 2 * math.pi * axis * ((along - angle) / (2 * math.pi)).round()
    return values


def product(first: Tensor, second: Tensor) -> Tensor:
    """Return the products of matrices, (..., 3, 3) each."""
    return (first.unsqueeze(-1) * second.unsqueeze(-3)).sum(-2)


def turned(vectors: Tensor, rotations: Tensor) -> Tensor:
    """Return the products of matrices, (..., 3, 3), and vectors, (..., 3)."""
    return (rotations * vectors.unsqueeze(-2)).sum(-1)


def orthonormal(columns: Tensor) -> Tensor:
    """Return the rotations whose first two columns `columns`, (..., 6), stand for, (..., 3, 3).

    The second column is made orthogonal to the first, and both are given the length 1 (Gram-Schmidt),
    as by Zhou et al.
    """
    first = F.normalize(columns[..., :3], dim=-1, eps=SMALLEST)
    second = columns[..., 3:]
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = F.normalize(second, dim=-1, eps=SMALLEST)
    third: Tensor = torch.linalg.cross(first, second)
    return torch.stack([first, second, third], dim=-1)


def two_columns(rotations: Tensor) -> Tensor:
    """Return the first two columns of matrices (..., 3, 3), one after the other, (..., 6)."""
    return rotations[..., :2].transpose(-1, -2).flatten(-2)


def deviation(values: Tensor, form: str) -> Tensor:
    """Return how far values (..., n) are from being any rotation: of lengths from 1, (...).

    For angles, by how much they exceed two turns, as they do in degrees.
    """
    if form in ("rotvec", "rpy"):
        return (values.abs().amax(-1) - 4 * math.pi).clamp_min(0)
    if form in QUATERNIONS:
        return (_length(values) - 1).abs().squeeze(-1)
    first, second = values[..., :3], values[..., 3:]
    lengths = torch.cat([_length(first), _length(second)], dim=-1)
    return torch.maximum((lengths - 1).abs().amax(-1), (first * second).sum(-1).abs())


def _length(values: Tensor) -> Tensor:
    """Return the lengths of vectors (..., n), (..., 1)."""
    length: Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    return length


def _of_quaternion(values: Tensor) -> Tensor:
    """Return the matrices of quaternions (x, y, z, w), which need not have the length 1."""
    x, y, z, w = F.normalize(values, dim=-1, eps=SMALLEST).unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], dim=-1),
        torch.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], dim=-1),
        torch.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def _of_rotvec(values: Tensor) -> Tensor:
    half = _length(values) / 2
    return _of_quaternion(torch.cat([values / 2 * torch.sinc(half / math.pi), half.cos()], dim=-1))


def _of_rpy(values: Tensor) -> Tensor:
    about_x, about_y, about_z = (_of_rotvec(each) for each in torch.diag_embed(values).unbind(-2))
    return product(about_z, product(about_y, about_x))


def _to_quaternion(rotations: Tensor) -> Tensor:
    """Return quaternions (x, y, z, w) with w >= 0.

    The 4x4 matrix below is 4 q q^T; its row with the greatest diagonal is the most exact one.
    """
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in rotations.unbind(-2))
    rows = [
        torch.stack([1 + a - e - i, b + d, c + g, h - f], dim=-1),
        torch.stack([b + d, 1 - a + e - i, f + h, c - g], dim=-1),
        torch.stack([c + g, f + h, 1 - a - e + i, d - b], dim=-1),
        torch.stack([h - f, c - g, d - b, 1 + a + e + i], dim=-1),
    ]
    outer = torch.stack(rows, dim=-2)
    most = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    chosen = outer.gather(-2, most.expand(*most.shape[:-1], 4)).squeeze(-2)
    q = F.normalize(chosen, dim=-1, eps=SMALLEST)
    return torch.where(q[..., 3:] < 0, -q, q)


def _to_rotvec(rotations: Tensor) -> Tensor:
    q = _to_quaternion(rotations)
    sine = _length(q[..., :3])
    angle = 2 * torch.atan2(sine, q[..., 3:])
    return q[..., :3] * torch.where(sine > SMALLEST, angle / sine.clamp_min(SMALLEST), 2.0)


def _to_rpy(rotations: Tensor) -> Tensor:
    """Return roll, pitch and yaw.

    Yaw is found with the roll that was taken, so that they make the rotation also where the pitch is
    a right angle, and only their sum or difference is defined.
    """
    (_, b, c), (_, e, f), (g, h, i) = (row.unbind(-1) for row in rotations.unbind(-2))
    roll = torch.atan2(h, i)
    sine, cosine = roll.sin(), roll.cos()
    pitch = torch.atan2(-g, sine * h + cosine * i)
    yaw = torch.atan2(sine * c - cosine * b, cosine * e - sine * f)
    return torch.stack([roll, pitch, yaw], dim=-1)


_READERS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "xyzw": _of_quaternion,
        "wxyz": lambda values: _of_quaternion(values.roll(-1, dims=-1)),
        "rotvec": _of_rotvec,
        "rpy": _of_rpy,
        "6d-columns": orthonormal,
        "6d-rows": lambda values: orthonormal(values).mT,
    }
)
_WRITERS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "xyzw": _to_quaternion,
        "wxyz": lambda rotations: _to_quaternion(rotations).roll(1, dims=-1),
        "rotvec": _to_rotvec,
        "rpy": _to_rpy,
        "6d-columns": two_columns,
        "6d-rows": lambda rotations: two_columns(rotations.mT),
    }
)
