"""The inputs of the policy network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureMaps:
    """The feature maps of one camera at T ticks of B windows, each distinct map once."""

    maps: Tensor
    """(U, C, h, w) float16 or float32."""
    index: Tensor
    """(B, T) int64: the map of each tick."""

    def to(self, device: torch.device | str) -> FeatureMaps:
        """Return the maps on `device`."""
        return FeatureMaps(self.maps.to(device), self.index.to(device))

    def at_ticks(self, ticks: slice) -> FeatureMaps:
        """Return the maps of those ticks of all windows."""
        used, index = torch.unique(self.index[:, ticks], return_inverse=True)
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

    def to(self, device: torch.device | str) -> PolicyInputs:
        """Return the inputs on `device`."""
        valid = self.proprioception_valid
        return PolicyInputs(
            {name: value.to(device) for name, value in self.images.items()},
            {name: value.to(device) for name, value in self.proprioception.items()},
            self.previous_action.to(device),
            self.previous_action_valid.to(device),
            self.language.to(device),
            None if valid is None else valid.to(device),
            _each(self.features, lambda maps: maps.to(device)),
            None if self.colours is None else self.colours.to(device),
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
        )


def _each(
    features: Mapping[str, FeatureMaps] | None, change: Callable[[FeatureMaps], FeatureMaps]
) -> dict[str, FeatureMaps] | None:
    return None if features is None else {name: change(maps) for name, maps in features.items()}
