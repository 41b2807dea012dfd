"""A write that visits one slot a tick, in turn. Ours, not the TTM paper's.

    M' = [M_2 ‖ … ‖ M_m ‖ W]        W = g * M_1 + (1 - g) * S        S = S_1([M_1 ‖ I ‖ O] + P_write)

M_1 is the slot that was visited longest ago. The gate g of its D channels is that of `GatedWrite`, so
that the slot keeps what it holds or takes the new tokens, which are not mixed with the other slots.
It then becomes the last slot: the memory turns by one slot a tick. Every slot is visited each m
ticks, as in the dilated recurrent networks of Chang et al. 2017, so that what is remembered for T
ticks passes floor(T / m) gates instead of T.

At the start the gates of a visit are spread over the channels: channel i keeps u / (1 + u) of itself,
b_i = log u with u evenly spaced in [1, max_ticks / m - 1], that is, time scales from 2 m to `max_ticks`
ticks (chrono initialisation, Tallec and Ollivier 2018), and of 2 m ticks if `max_ticks` is shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.cores.ttm.gated_write import GatedWrite, chrono_bias
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer


class RingWrite(GatedWrite):
    """Write the first slot by its gates, and move it to the end.

    The slots need no weights of their own: the ticks at which they are visited tell them apart.
    """

    def __init__(
        self, candidate: PositionedSummarizer, width: int, memory_size: int, max_ticks: int
    ) -> None:
        """candidate: S_1, which adds P_write. max_ticks: the longest time scale at the start."""
        visits = max(max_ticks / memory_size, 2)
        super().__init__(candidate, width, chrono_bias(width, visits).T)

    def forward(self, memory: Tensor, *others: Tensor) -> Tensor:
        """See `GatedWrite.forward`."""
        return torch.cat([memory[:, 1:], super().forward(memory[:, :1], *others)], dim=1)

    def over_ticks(self, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Write T ticks of an episode, m at once, since they visit different slots.

        T need not be a multiple of m: the last group is then smaller. The result is that of T calls
        of `forward`.

        memory: (B, m, D); inputs: (B, T, N, D). Returns the memories that the ticks read, which are
        those before their writes, (B, T, m, D), and the memory after the last, (B, m, D).
        """
        size, ticks = memory.shape[1], inputs.shape[1]
        slots = memory  # in the order of visits; tick t reads slots t to t + m
        for first in range(0, ticks, size):
            now = inputs[:, first : first + size]  # (B, K, N, D)
            oldest = slots[:, first : first + now.shape[1]].flatten(0, 1).unsqueeze(1)
            written = super().forward(oldest, now.flatten(0, 1))  # (B * K, 1, D)
            slots = torch.cat([slots, written.view(len(memory), -1, memory.shape[2])], dim=1)
        memories = slots.unfold(1, size, 1).transpose(2, 3)  # (B, T + 1, m, D)
        return memories[:, :-1], memories[:, -1]

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        """See `GatedWrite.weights`."""
        visited = super().weights(memory[:, :1], *others)  # (B, 1 + P - m, 1)
        rest = memory.shape[1] - 1
        visited = torch.cat([visited[:, :1], F.pad(visited[:, 1:], (0, 0, rest, 0))], dim=1)
        moved = torch.eye(visited.shape[1], device=memory.device)[:, 1 : rest + 1]
        return torch.cat([moved.to(visited.dtype).expand(len(memory), -1, -1), visited], dim=2)
