"""What the recall loss asks for: that which has been seen and is not seen now."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def largest_differences(codes: Tensor, highest: Tensor, lowest: Tensor) -> Tensor:
    """Return the largest difference between a past code and the present one, with its sign.

    codes: (..., C). highest, lowest: the largest and the smallest value of each dimension so far,
    of the same shape.
    """
    above, below = highest - codes, lowest - codes
    return torch.where(above > -below, above, below)


class RecallTargets:
    """The targets of all ticks of a data set: the largest difference of a past code to the present.

    At tick t, in each dimension of the codes c, the target is the c_s - c_t of largest magnitude
    over the ticks s before t. It is 0 where everything that was seen is still seen.
    """

    def __init__(self, codes: Tensor, lengths: Sequence[int]) -> None:
        """codes: (versions, num_ticks, C), of episodes of these lengths one after another."""
        self.codes = codes
        parts = codes.split(list(lengths), dim=1)
        self._highest = torch.cat([part.cummax(dim=1).values for part in parts], dim=1)
        self._lowest = torch.cat([part.cummin(dim=1).values for part in parts], dim=1)

    @property
    def size(self) -> int:
        """C, the dimensions of a target."""
        return self.codes.shape[2]

    def at(
        self, ticks: Tensor, versions: Tensor | None = None, *, whole_past: bool = False
    ) -> Tensor:
        """Return the targets of windows of dataset ticks (B, T), as (B, T, C).

        versions: (B,) int64; None for the frames as recorded. whole_past: whether the ticks of the
        episode before the window count as seen, because its memory is carried over. Otherwise the
        past begins with the window.
        """
        version = torch.zeros(len(ticks), dtype=torch.int64) if versions is None else versions
        at = version[:, None], ticks
        codes = self.codes[at]
        if whole_past:
            return largest_differences(codes, self._highest[at], self._lowest[at])
        return largest_differences(codes, codes.cummax(1).values, codes.cummin(1).values)
