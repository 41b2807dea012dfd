"""Delays between observation and command, as a robot has them that goes on while its policy thinks.

What is commanded upon an observation is in force only some time later, when the robot is elsewhere.
"Thinking while moving" (Xiao et al., 2020) therefore tells the policy that time, beside the previous
action. For behaviour cloning this means to learn what was demonstrated so much later.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ttm.datasets.windows.window_dataset import Chunks
from ttm.policy.spec import PolicySpec


class Delays:
    """Draws a delay for each window, and finds the actions that were demonstrated so much later.

    The demonstrated action of a tick is in force for a whole tick. A command with a delay of 0.3 ticks is
    in force for the last 0.7 of one tick and the first 0.3 of the next, so that it is their mean with
    these weights. A binary part takes the action that is in force for the larger share. Beyond the end of
    an episode its last action goes on.
    """

    def __init__(self, spec: PolicySpec, longest_s: float) -> None:
        """longest_s: delays are drawn uniformly from 0 to this, in seconds."""
        self._longest_s, self._tick_s = longest_s, spec.control_dt_s
        self._binary = torch.from_numpy(spec.binary_mask)
        self.ticks_ahead = math.floor(longest_s / spec.control_dt_s) + 1
        """How many more actions than the policy predicts `in_force` needs."""

    def drawn(self, count: int, rng: np.random.Generator) -> Tensor:
        """Return the delays of so many windows, (count,) float32 in seconds."""
        return torch.from_numpy(rng.uniform(0.0, self._longest_s, count).astype(np.float32))

    def in_force(self, coming: Chunks, delay_s: Tensor, size: int) -> Chunks:
        """Return the `size` actions of each tick that begin `delay_s` after it.

        coming: the next `size` + `ticks_ahead` actions of each tick; delay_s: (B,).
        """
        ticks = delay_s / self._tick_s  # (B,)
        whole = ticks.floor().clamp_max(self.ticks_ahead - 1)
        share = (ticks - whole)[:, None, None, None]  # (B, 1, 1, 1), in the later of two ticks
        earlier = whole.long()[:, None] + torch.arange(size, device=ticks.device)  # (B, K)
        first, second = _taken(coming.actions, earlier), _taken(coming.actions, earlier + 1)
        mean = (1 - share) * first + share * second
        nearest = torch.where(share > 0.5, second, first)
        actions = torch.where(self._binary.to(mean.device), nearest, mean)
        main = earlier + (ticks - whole > 0.5).long()[:, None]
        return Chunks(actions, coming.inside[..., :size], _taken(coming.dataset_tick, main))


def _taken(values: Tensor, index: Tensor) -> Tensor:
    """Return values (B, T, n, …) at the places (B, K) of the third axis, (B, T, K, …)."""
    batch = torch.arange(len(index), device=index.device)[:, None]
    return values.transpose(1, 2)[batch, index].transpose(1, 2)
