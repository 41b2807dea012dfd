"""The inputs of the policy network, and their normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec


@dataclass(frozen=True)
class FeatureMaps:
    """The feature maps of one camera at T ticks of B windows, each distinct map once."""

    maps: Tensor  # (U, C, h, w) float16 or float32
    index: Tensor  # (B, T) int64: the map of each tick
    to_write: tuple[Tensor, ...] = ()  # of `SightMemory.to_write` for each map, if known

    def each_tensor(self, change: Callable[[Tensor], Tensor]) -> FeatureMaps:
        """Return the maps and what belongs to them as `change` returns them."""
        return FeatureMaps(change(self.maps), change(self.index), (*map(change, self.to_write),))

    def select(self, choose: Callable[[Tensor], Tensor]) -> FeatureMaps:
        """Return the maps of some of the ticks: those of which `choose` keeps the index."""
        used, index = torch.unique(choose(self.index), return_inverse=True)
        return FeatureMaps(self.maps[used], index, tuple(each[used] for each in self.to_write))


@dataclass(frozen=True)
class PolicyInputs:
    """What the network sees at T ticks of B windows, in the units of the spec."""

    images: Mapping[str, Tensor]  # camera -> (B, T, 3, H, W) uint8, or float in [0, 1]
    proprioception: Mapping[str, Tensor]  # name -> (B, T, K) float32
    previous_action: Tensor  # (B, T, A) float32; zeros at the first tick of an episode
    previous_action_valid: Tensor  # (B, T) bool; False at an episode's first tick, or to hide it
    language: Tensor  # (B, L) float32, the embedding of the instruction
    proprioception_valid: Tensor | None = None  # (B, T) bool; False to hide it; None for True
    features: Mapping[str, FeatureMaps] | None = None
    """Camera -> what vision makes of its images under this instruction. Vision then does not run."""
    cells: FeatureMaps | None = None
    """With `features`, for a policy with a sight memory: see `Policy.cells_of`."""
    delay_s: Tensor | None = None
    """(B, T) float32, the time from the observation until its command is in force; None for 0."""

    @property
    def known_delay_s(self) -> Tensor:
        """`delay_s` with zeros in place of None, (B, T)."""
        if self.delay_s is not None:
            return self.delay_s
        return torch.zeros_like(self.previous_action[..., 0])

    def to(self, device: torch.device | str) -> PolicyInputs:
        """Return the inputs on `device`."""
        return self.each_tensor(lambda value: value.to(device))

    def each_tensor(self, change: Callable[[Tensor], Tensor]) -> PolicyInputs:
        """Return the inputs with all tensors as `change` returns them."""
        return self._changed(change, lambda maps: maps.each_tensor(change))

    def of_windows(self, rows: slice) -> PolicyInputs:
        """Return all ticks of those windows."""
        return self._selected(lambda value: value[rows])

    def at_ticks(self, ticks: slice) -> PolicyInputs:
        """Return those ticks of all windows."""
        return replace(self._selected(lambda value: value[:, ticks]), language=self.language)

    def _selected(self, choose: Callable[[Tensor], Tensor]) -> PolicyInputs:
        return self._changed(choose, lambda maps: maps.select(choose))

    def _changed(
        self, change: Callable[[Tensor], Tensor], change_maps: Callable[[FeatureMaps], FeatureMaps]
    ) -> PolicyInputs:
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            to = change_maps if field.name in ("features", "cells") else change
            if isinstance(value, Mapping):
                changed[field.name] = {name: to(each) for name, each in value.items()}
            else:
                changed[field.name] = None if value is None else to(value)
        return PolicyInputs(**changed)


Floats = npt.NDArray[np.floating[Any]]

RANGE_FLOOR = 0.005
"""The smallest deviation of an action, as a portion of its range: dimensions at rest stay bounded."""
ABSOLUTE_FLOOR = 1e-3
"""The same where the range is unknown, and for proprioception, in the unit of the dimension."""
INPUT_LIMIT = 8.0
"""Inputs are clipped to so many deviations, so that no sensor dominates the other inputs."""


class Scaling(nn.Module):
    """Compute (x - mean) / std for one vector; mean 0 and std 1 until `set` is called."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def set(self, mean: Floats, std: Floats) -> None:
        """Copy statistics of shape (K,). The caller makes sure that `std` is not too small."""
        for buffer, values in ((self.mean, mean), (self.std, std)):
            buffer.copy_(torch.as_tensor(np.asarray(values, np.float32)))

    def normalize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def denormalize(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean


class Normalizer(nn.Module):
    """The scalings of all vectors of a spec, which are saved with the weights.

    Continuous values get mean 0 and standard deviation 1. Of binary dimensions of the action the two
    commands become 0 and 1.
    """

    def __init__(
        self,
        spec: PolicySpec,
        predicted: PolicySpec | None = None,
        relative: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """predicted: the spec with actions in the form that the network predicts; None for `spec`.

        relative: (P,) bool, True where that is another than the robot's (see `RelativeActions`). Actions
        that were executed are then scaled by statistics of their own.
        """
        super().__init__()
        self._spec, self._predicted = spec, spec if predicted is None else predicted
        self._relative = np.zeros(spec.action_size, bool) if relative is None else relative
        self.actions = self._action_scaling(self._predicted)
        """Of actions in the form that the network predicts, (..., P)."""
        self.executed = self._action_scaling(spec) if self._relative.any() else None
        # A list in the order of the spec: names of vectors may hold dots, names of modules may not.
        self.proprioception = nn.ModuleList(Scaling(vector.size) for vector in spec.proprioception)

    def set_statistics(self, statistics: Any, predicted: Any = None) -> None:
        """Take mean and deviation, with a minimum, of every vector, and of actions as they are predicted.

        statistics: `actions` and `proprioception`, name -> each, with `mean` and `std` (K,) in the units of
        the spec. predicted: those of the predicted actions, if these have another form.
        """
        assert (predicted is None) == (self.executed is None), "relative actions have their own"
        for name, scaling in self._vectors():
            if name not in statistics.proprioception:
                raise UserError(f"the statistics lack proprioception '{name}'; recompute them")
            given = statistics.proprioception[name]
            scaling.set(given.mean, np.maximum(given.std, ABSOLUTE_FLOOR))
        robots, floor = statistics.actions, _action_floor(self._predicted)
        if predicted is not None and self.executed is not None:
            std = np.maximum(robots.std, _action_floor(self._spec))
            _set_actions(self.executed, self._spec, robots.mean, std)
            floor = np.where(self._relative, ABSOLUTE_FLOOR, floor)
        network = robots if predicted is None else predicted
        _set_actions(self.actions, self._predicted, network.mean, np.maximum(network.std, floor))

    def normalize_proprioception(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the vectors, (..., K), in the order of the spec, normalised and clipped."""
        return [
            scaling.normalize(values[name]).clamp(-INPUT_LIMIT, INPUT_LIMIT)
            for name, scaling in self._vectors()
        ]

    def normalize_executed(self, actions: Tensor) -> Tensor:
        """Map actions in units, (..., A), in the robot's form, to normalised ones."""
        return (self.actions if self.executed is None else self.executed).normalize(actions)

    @staticmethod
    def _action_scaling(spec: PolicySpec) -> Scaling:
        scaling = Scaling(spec.action_size)
        _set_actions(scaling, spec, np.zeros(spec.action_size), np.ones(spec.action_size))
        return scaling

    def _vectors(self) -> Iterator[tuple[str, Scaling]]:
        for vector, scaling in zip(self._spec.proprioception, self.proprioception, strict=True):
            assert isinstance(scaling, Scaling)
            yield vector.name, scaling


def _set_actions(scaling: Scaling, spec: PolicySpec, mean: Floats, std: Floats) -> None:
    binary, (low, high) = spec.binary_mask, spec.action_limits
    scaling.set(np.where(binary, low, mean), np.where(binary, high - low, std))


def _action_floor(spec: PolicySpec) -> Floats:
    """Return the smallest deviation of each dimension, (A,), from the limits of its command."""
    floors = []
    for part in spec.actions:
        width = part.limits[1] - part.limits[0]
        known = np.isfinite(width) and width > 0
        floors += [RANGE_FLOOR * width if known else ABSOLUTE_FLOOR] * part.size
    return np.array(floors)
