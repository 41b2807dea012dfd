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

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ttm.policy.cores.ttm.gated_write import GatedWrite, chrono_bias
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.layers.token_learner import LogitSummarizer


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
        candidates = self._candidates(inputs)
        for first in range(0, ticks, size):
            oldest = slots[:, first : min(first + size, ticks)]  # (B, K, D)
            slots = torch.cat([slots, self.mixed(oldest, candidates(oldest, first))], dim=1)
        memories = slots.unfold(1, size, 1).transpose(2, 3)  # (B, T + 1, m, D)
        return memories[:, :-1], memories[:, -1]

    def _candidates(self, inputs: Tensor) -> Callable[[Tensor, int], Tensor]:
        """Return what makes S for K ticks of (B, T, N, D) of the slots that they visit, (B, K, D).

        It is called with the slots and the first of the ticks. Where the summary is a softmax, all
        that the inputs give to it is computed here for all ticks at once.
        """
        summarizer, position = self.candidate.summarizer, self.candidate.position
        if not isinstance(summarizer, LogitSummarizer):

            def whole(oldest: Tensor, first: int) -> Tensor:
                now = inputs[:, first : first + oldest.shape[1]].flatten(0, 1)
                made: Tensor = self.candidate(oldest.flatten(0, 1).unsqueeze(1), now)
                return made.view_as(oldest)

            return whole
        of_slot, of_inputs = (0, 0) if position is None else (position[:, :1], position[:, 1:])
        tokens = (inputs + of_inputs).flatten(0, 1)  # (B * T, N, D)
        logits = summarizer.logits(tokens)  # (B * T, N, 1)
        mean = (logits.softmax(dim=1).transpose(1, 2) @ tokens).view(*inputs.shape[:2], -1)
        amount = logits.logsumexp(dim=1).view(*inputs.shape[:2], 1)

        def joined(oldest: Tensor, first: int) -> Tensor:
            ticks, token = slice(first, first + oldest.shape[1]), oldest + of_slot
            portion = (summarizer.logits(token) - amount[:, ticks]).sigmoid().to(token.dtype)
            return torch.lerp(mean[:, ticks].to(token.dtype), token, portion)

        return joined

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        """See `GatedWrite.weights`."""
        visited = super().weights(memory[:, :1], *others)  # (B, 1 + P - m, 1)
        rest = memory.shape[1] - 1
        visited = torch.cat([visited[:, :1], F.pad(visited[:, 1:], (0, 0, rest, 0))], dim=1)
        moved = torch.eye(visited.shape[1], device=memory.device)[:, 1 : rest + 1]
        return torch.cat([moved.to(visited.dtype).expand(len(memory), -1, -1), visited], dim=2)
