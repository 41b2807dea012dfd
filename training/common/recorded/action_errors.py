"""How far predicted actions are from demonstrated ones.

The normalised error is the root mean square over ticks and action dimensions of (predicted -
demonstrated) / s, where s is the standard deviation of the dimension over the training episodes;
dimensions that never moved in them (`LEAST_DEVIATION`) are left out.
The mean action has the least mean square of all constant predictions, so it is the strongest
constant baseline for this error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ttm.datasets.statistics import LEAST_DEVIATION
from ttm.policy.spec import PolicySpec

Floats = npt.NDArray[np.floating[Any]]


def squared_errors(predicted: Floats, actions: Floats, scale: Floats) -> Floats:
    """Return the mean over dimensions of the squared normalised error.

    predicted, actions: (..., A); scale: (A,), as in `ErrorSum` -> (...).
    """
    moved = scale > LEAST_DEVIATION
    squares: Floats = np.square((predicted.astype(np.float64) - actions)[..., moved] / scale[moved])
    return squares.mean(axis=-1)


@dataclass(frozen=True)
class ActionErrors:
    """The errors of one predictor over some ticks."""

    normalized: float
    """Root mean square error in standard deviations of the training actions."""
    parts: dict[str, float]
    """Part -> mean absolute error in the part's unit; for a binary part the portion of wrong
    ticks."""
    ticks: int
    data_sets: Mapping[str, ActionErrors] = field(default_factory=dict)
    """The errors on the ticks of each data set, by its name, where there are several."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `result.json`."""
        told = {"normalized": self.normalized, "parts": self.parts, "ticks": self.ticks}
        each = {name: errors.to_json() for name, errors in self.data_sets.items()}
        return {**told, **({"data_sets": each} if each else {})}


@dataclass
class ErrorSum:
    """Accumulates errors over batches."""

    spec: PolicySpec
    scale: Floats
    """(A,) standard deviations of the training actions."""
    _squares: Floats = field(init=False)
    _absolute: Floats = field(init=False)
    ticks: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._squares = np.zeros(self.spec.action_size)
        self._absolute = np.zeros(self.spec.action_size)

    def add(self, predicted: Floats, actions: Floats) -> None:
        """Add n ticks.

        predicted, actions: (n, A) in the spec's units. Binary dimensions of `predicted` are the
        means of `Policy.decode`.
        """
        error = predicted.astype(np.float64) - actions
        self._squares += np.square(error).sum(axis=0)
        binary, thresholds = self.spec.binary_mask, self.spec.thresholds
        wrong = (predicted > thresholds) != (actions > thresholds)
        self._absolute += np.where(binary, wrong, np.abs(error)).sum(axis=0)
        self.ticks += len(actions)

    def over(self, add_up: Callable[[Tensor], Tensor]) -> ErrorSum:
        """Return the sum of several of these, given a function that adds up the same tensor of each."""
        mine = np.concatenate([self._squares, self._absolute, [self.ticks]])
        *sums, ticks = np.split(add_up(torch.from_numpy(mine)).numpy(), (len(self._squares), -1))
        whole = ErrorSum(self.spec, self.scale)
        whole._squares, whole._absolute = sums
        whole.ticks = int(ticks[0])
        return whole

    def result(self) -> ActionErrors:
        """Return the means over all ticks added so far."""
        moved = self.scale > LEAST_DEVIATION
        mean_squares = self._squares[moved] / self.ticks / np.square(self.scale[moved])
        mean_absolute = self._absolute / self.ticks
        parts = {
            name: float(mean_absolute[part].mean())
            for name, part in self.spec.action_slices.items()
        }
        return ActionErrors(float(np.sqrt(mean_squares.mean())), parts, self.ticks)
