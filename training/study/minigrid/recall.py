"""A loss that asks the core's outputs what was seen earlier in the episode and is not seen now.

It needs no labels and knows nothing of the task: the targets are the agent's own views. The loss of
the actions asks for the memory at one tick of an episode, long after what is to be remembered. This
one asks from the next tick on, so that a memory that is kept for a tick, then for two and so on, is
rewarded all the way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RecallHead(nn.Module):
    """Tells from the core's output which kinds of tiles have been in view so far."""

    def __init__(self, width: int, num_kinds: int) -> None:
        super().__init__()
        self.num_kinds = num_kinds
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_kinds))

    def loss(self, outputs: Tensor, tiles: Tensor, real: Tensor) -> Tensor:
        """Return the mean logistic loss over the kinds that are not in view, a scalar.

        outputs: (B, T, D). tiles: (B, T, 49) int64. real: (B, T) bool, False after the end.
        """
        now = seen_now(tiles, self.num_kinds)
        asked = ~now & real.unsqueeze(-1)
        before = now.cumsum(dim=1) > 0
        logits = self.layers(outputs)
        return F.binary_cross_entropy_with_logits(logits[asked], before[asked].to(logits.dtype))


def seen_now(tiles: Tensor, num_kinds: int) -> Tensor:
    """Return which kinds of tiles are in view: (B, T, 49) int64 -> (B, T, kinds) bool."""
    now = torch.zeros(*tiles.shape[:2], num_kinds, dtype=torch.bool, device=tiles.device)
    return now.scatter(2, tiles, True)
