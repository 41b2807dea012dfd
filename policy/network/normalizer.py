"""Normalisation that travels with the weights: statistics of the training data as buffers.

Continuous actions and proprioception are brought to mean 0 and deviation 1. Deviations, and not percentiles,
because a dimension that is used in one tick of a hundred (a turn of the base) has percentiles of zero width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

Floats = npt.NDArray[np.floating[Any]]

RANGE_FLOOR = 0.005
"""A deviation counts as at least this part of the command's range, so that dimensions at rest do not explode."""
ABSOLUTE_FLOOR = 1e-3
"""The same where the range is not known, and for proprioception; in the dimension's unit (m, rad, …)."""
INPUT_LIMIT = 8.0
"""Inputs are clipped to so many deviations: a sensor far outside of the training data must not drown the rest."""


class VectorStatistics(Protocol):
    """Statistics of the dimensions of one vector, each (K,), in the spec's units."""

    @property
    def mean(self) -> Floats: ...
    @property
    def std(self) -> Floats: ...


class DatasetStatistics(Protocol):
    """What `Normalizer.set_statistics` reads from the statistics of a data set."""

    @property
    def actions(self) -> VectorStatistics: ...
    @property
    def proprioception(self) -> Mapping[str, VectorStatistics]: ...


class Scaling(nn.Module):
    """(x - mean) / std for one vector; mean 0 and std 1 until set."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def set(self, mean: Floats, std: Floats) -> None:
        """Takes (K,) statistics; `std` must be floored already."""
        for buffer, values in ((self.mean, mean), (self.std, std)):
            buffer.copy_(torch.as_tensor(np.asarray(values, np.float32)))

    def normalize(self, x: Tensor) -> Tensor:
        """Units -> normalised, (..., K)."""
        return (x - self.mean) / self.std

    def denormalize(self, x: Tensor) -> Tensor:
        """Normalised -> units, (..., K)."""
        return x * self.std + self.mean


class Normalizer(nn.Module):
    """The scalings of a spec's vectors. Binary action dimensions stay as they are."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self._spec = spec
        self.actions = Scaling(spec.action_size)
        # A list in the spec's order, because a vector's name may hold a dot, which no module's name may.
        self.proprioception = nn.ModuleList(Scaling(vector.size) for vector in spec.proprioception)

    def set_statistics(self, statistics: DatasetStatistics) -> None:
        """Takes mean and deviation of every vector, with floors under the deviations."""
        for name, scaling in self._vectors():
            if name not in statistics.proprioception:
                have = ", ".join(sorted(statistics.proprioception)) or "none"
                raise UserError(
                    f"the statistics lack proprioception '{name}' (they have: {have}); recompute them"
                )
            given = statistics.proprioception[name]
            scaling.set(given.mean, np.maximum(given.std, ABSOLUTE_FLOOR))
        binary = self._spec.binary_mask
        std = np.maximum(statistics.actions.std, self._action_floor())
        self.actions.set(np.where(binary, 0.0, statistics.actions.mean), np.where(binary, 1.0, std))

    def normalize_proprioception(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Vectors by name, (..., K) in units -> in the spec's order, normalised and clipped."""
        return [
            scaling.normalize(values[name]).clamp(-INPUT_LIMIT, INPUT_LIMIT)
            for name, scaling in self._vectors()
        ]

    def normalize_actions(self, actions: Tensor) -> Tensor:
        """(..., A) in units -> normalised; binary dimensions as they are."""
        return self.actions.normalize(actions)

    def denormalize_actions(self, normalized: Tensor) -> Tensor:
        """(..., A) normalised -> in units; binary dimensions as they are."""
        return self.actions.denormalize(normalized)

    def _vectors(self) -> Iterator[tuple[str, Scaling]]:
        for vector, scaling in zip(self._spec.proprioception, self.proprioception, strict=True):
            assert isinstance(scaling, Scaling)
            yield vector.name, scaling

    def _action_floor(self) -> Floats:
        """(A,) the least deviation of each dimension, from the limits of its command."""
        floors = []
        for part in self._spec.actions:
            width = part.high - part.low
            known = np.isfinite(width) and width > 0
            floors += [RANGE_FLOOR * width if known else ABSOLUTE_FLOOR] * part.size
        return np.array(floors)
