"""A policy in plain PyTorch, behind the evaluator and the node: `--actor own_policy:OwnPolicy`.

It has random weights. Load your own in `__init__`; leave out `snapshot` and `restore` if no probe is to look.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ttm.policy import PolicySpec


class OwnPolicy(nn.Module):
    """A convolution over the first camera, proprioception, and a GRU over the ticks."""

    def __init__(self, spec: PolicySpec) -> None:
        """spec: what the robot or the environment observes and commands."""
        super().__init__()
        torch.manual_seed(0)
        self.camera, self.vectors = spec.cameras[0].name, spec.proprioception
        self.low, self.high = map(torch.from_numpy, spec.action_limits)
        self.look = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.memory = nn.GRUCell(32 + sum(vector.size for vector in self.vectors), 32)
        self.head = nn.Linear(32, spec.action_size)

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self.hidden = torch.zeros(1, 32)

    @torch.no_grad()
    def act(self, observation: Mapping[str, np.ndarray]) -> Tensor:
        """Return the action of this tick, (A,), in the units of the spec."""
        frame = torch.tensor(observation[self.camera]).permute(2, 0, 1)[None] / 255  # (1, 3, H, W)
        measured = [torch.tensor(observation[vector.name]) for vector in self.vectors]
        seen = torch.cat([self.look(frame)[0], *measured])[None]
        self.hidden = self.memory(seen, self.hidden)
        action = self.head(self.hidden)[0].sigmoid()
        return self.low + action * (self.high - self.low)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return all that it remembers."""
        return {"hidden": self.hidden.numpy().copy()}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Remember what it remembered then."""
        self.hidden = torch.tensor(snapshot["hidden"])
