"""How far two computations of one result may differ on any CPU."""

from __future__ import annotations

import numpy.typing as npt
import torch
from torch import Tensor


def assert_same_but_rounding(
    found: Tensor | npt.ArrayLike, expected: Tensor | npt.ArrayLike, operations: int = 1000
) -> None:
    """Assert that two results of one formula, computed in another order or shape, are the same.

    Kernels round differently for each kind of CPU, number of threads and shape, and for each row of a
    batch. Where one kernel met one shape, `torch.equal` is right. Integers and masks must be equal.

    operations: how many roundings follow one another, counted generously. Each may be off by a unit
    in the last place of the largest value, in the lower of the two precisions.
    """
    mine, wanted = torch.as_tensor(found), torch.as_tensor(expected)
    if not wanted.is_floating_point():
        assert torch.equal(mine, wanted)
        return
    eps = max(torch.finfo(each.dtype).eps for each in (mine, wanted))
    size = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(mine.double(), wanted.double(), rtol=0, atol=operations * eps * size)
