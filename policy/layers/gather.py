"""Indexing along the time axis, with an index of its own for each element of a batch."""

from __future__ import annotations

from torch import Tensor


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Return the entries of x that each row of `index` names.

    x: (B, T, ...); index: (B, S) int64, values in [0, T). Returns (B, S, ...), where entry [b, s]
    is `x[b, index[b, s]]`.
    """
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))
