"""The inputs of the policy network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureMaps:
    """The feature maps of one camera at T ticks of B windows, each distinct map once."""

    maps: Tensor
    """(U, C, h, w) float16 or float32."""
    index: Tensor
    """(B, T) int64: the map of each tick."""

    def each_tensor(self, change: Callable[[Tensor], Tensor]) -> FeatureMaps:
        """Return the maps and their index as `change` returns them."""
        return FeatureMaps(change(self.maps), change(self.index))

    def at_ticks(self, ticks: slice) -> FeatureMaps:
        """Return the maps of those ticks of all windows."""
        return self._with_index(self.index[:, ticks])

    def of_windows(self, rows: slice) -> FeatureMaps:
        """Return the maps of all ticks of those windows."""
        return self._with_index(self.index[rows])

    def _with_index(self, index: Tensor) -> FeatureMaps:
        used, index = torch.unique(index, return_inverse=True)
        return FeatureMaps(self.maps[used], index)


@dataclass(frozen=True)
class PolicyInputs:
    """What the network sees at T ticks of B windows, in the units of the spec."""

    images: Mapping[str, Tensor]
    """Camera -> (B, T, 3, H, W) uint8, or float in [0, 1]."""
    proprioception: Mapping[str, Tensor]
    """Name -> (B, T, K) float32."""
    previous_action: Tensor
    """(B, T, A) float32; zeros at the first tick of an episode."""
    previous_action_valid: Tensor
    """(B, T) bool; False at the first tick of an episode, or to hide it behind a learned vector."""
    language: Tensor
    """(B, L) float32, the embedding of the instruction."""
    proprioception_valid: Tensor | None = None
    """(B, T) bool; False to hide the proprioception. None stands for True everywhere."""
    features: Mapping[str, FeatureMaps] | None = None
    """Camera -> what vision makes of its images under this instruction. `images` may then be empty,
    and vision does not run."""
    colours: FeatureMaps | None = None
    """With `features`, for a policy with a sight memory: the colours of the cells of its camera; see
    `SightMemory.colours`."""
    delay_s: Tensor | None = None
    """(B, T) float32, the time from the observation until its command is in force, for a policy that is
    told it. None stands for 0 everywhere."""

    @property
    def told_delay_s(self) -> Tensor:
        """`delay_s` with zeros in place of None, (B, T)."""
        if self.delay_s is not None:
            return self.delay_s
        return torch.zeros_like(self.previous_action[..., 0])

    def to(self, device: torch.device | str) -> PolicyInputs:
        """Return the inputs on `device`."""
        return self.each_tensor(lambda value: value.to(device))

    def each_tensor(self, change: Callable[[Tensor], Tensor]) -> PolicyInputs:
        """Return the inputs with all tensors as `change` returns them."""
        valid = self.proprioception_valid
        return PolicyInputs(
            {name: change(value) for name, value in self.images.items()},
            {name: change(value) for name, value in self.proprioception.items()},
            change(self.previous_action),
            change(self.previous_action_valid),
            change(self.language),
            None if valid is None else change(valid),
            _each(self.features, lambda maps: maps.each_tensor(change)),
            None if self.colours is None else self.colours.each_tensor(change),
            None if self.delay_s is None else change(self.delay_s),
        )

    def of_windows(self, rows: slice) -> PolicyInputs:
        """Return all ticks of those windows."""
        plain = replace(self, features=None, colours=None).each_tensor(lambda value: value[rows])
        return replace(
            plain,
            features=_each(self.features, lambda maps: maps.of_windows(rows)),
            colours=None if self.colours is None else self.colours.of_windows(rows),
        )

    def at_ticks(self, ticks: slice) -> PolicyInputs:
        """Return those ticks of all windows."""
        valid = self.proprioception_valid
        return PolicyInputs(
            {name: value[:, ticks] for name, value in self.images.items()},
            {name: value[:, ticks] for name, value in self.proprioception.items()},
            self.previous_action[:, ticks],
            self.previous_action_valid[:, ticks],
            self.language,
            None if valid is None else valid[:, ticks],
            _each(self.features, lambda maps: maps.at_ticks(ticks)),
            None if self.colours is None else self.colours.at_ticks(ticks),
            None if self.delay_s is None else self.delay_s[:, ticks],
        )


def _each(
    features: Mapping[str, FeatureMaps] | None, change: Callable[[FeatureMaps], FeatureMaps]
) -> dict[str, FeatureMaps] | None:
    return None if features is None else {name: change(maps) for name, maps in features.items()}
