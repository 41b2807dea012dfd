"""How far predicted actions are from demonstrated ones, and from what a policy that sees nothing would do.

The normalised error is the root mean square over ticks and action dimensions of (predicted - demonstrated) / s,
where s is the dimension's standard deviation in the training episodes. Squares, because the mean action is
then the best of all constants, which makes it the hardest baseline of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ttm.policy.spec import PolicySpec

Floats = npt.NDArray[np.floating[Any]]


def squared_errors(predicted: Floats, actions: Floats, scale: Floats) -> Floats:
    """The squared normalised error of each tick, (...). predicted, actions: (..., A), scale: (A,), as in `ErrorSum`."""
    moved = scale > 1e-8
    squares: Floats = np.square((predicted.astype(np.float64) - actions)[..., moved] / scale[moved])
    return squares.mean(axis=-1)


@dataclass(frozen=True)
class ActionErrors:
    """Errors of one predictor over some ticks."""

    normalized: float
    """Root mean square error in standard deviations of the training actions."""
    parts: dict[str, float]
    """Mean absolute error in the part's unit; for binary parts the portion of ticks that are wrong."""
    ticks: int

    def to_json(self) -> dict[str, Any]:
        """Plain data for `result.json`."""
        return {"normalized": self.normalized, "parts": self.parts, "ticks": self.ticks}


@dataclass
class ErrorSum:
    """Adds up errors batch by batch."""

    spec: PolicySpec
    scale: Floats
    """(A,) standard deviations of the training actions; a dimension with 0 never moved and does not count."""
    _squares: Floats = field(init=False)
    _absolute: Floats = field(init=False)
    _ticks: int = 0

    def __post_init__(self) -> None:
        self._squares = np.zeros(self.spec.action_size)
        self._absolute = np.zeros(self.spec.action_size)

    def add(self, predicted: Floats, actions: Floats) -> None:
        """predicted, actions: (n, A) in the spec's units; binary dimensions of `predicted` are probabilities."""
        error = predicted.astype(np.float64) - actions
        self._squares += np.square(error).sum(axis=0)
        binary = self.spec.binary_mask
        wrong = (predicted > 0.5) != (actions > 0.5)
        self._absolute += np.where(binary, wrong, np.abs(error)).sum(axis=0)
        self._ticks += len(actions)

    def result(self) -> ActionErrors:
        """The means so far."""
        moved = self.scale > 1e-8
        mean_squares = self._squares[moved] / self._ticks / np.square(self.scale[moved])
        mean_absolute = self._absolute / self._ticks
        parts = {
            name: float(mean_absolute[part].mean())
            for name, part in self.spec.action_slices.items()
        }
        return ActionErrors(float(np.sqrt(mean_squares.mean())), parts, self._ticks)
