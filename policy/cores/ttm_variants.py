"""Ways to write the memory other than by a summary, for which see `PositionedSummarizer`.

All writes are called as write(memory, inputs, outputs) and return the new memory. These two do not
use the inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.attention import AttentionBlock
from ttm.policy.layers import Linear, Mlp, layer_norm
from ttm.policy.summarizers import LogitSummarizer, PositionedSummarizer

WRITE_TOKENS, WRITE_HIDDEN = 8, 64
"""T, and the hidden width of the MLPs of `EraseAddWrite`, as in the authors' code."""


class WriteVectors(nn.Module):
    """Map the r output tokens to T vectors, by an MLP over tokens and one over channels."""

    def __init__(self, width: int, num_inputs: int, num_tokens: int, hidden: int) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.token_mlp = Mlp(num_inputs, hidden, num_tokens)
        self.channel_mlp = Mlp(width, hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, r, D) to (B, T, D)."""
        mixed = self.token_mlp(self.norm(tokens).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.channel_mlp(mixed)
        return out


class EraseAddWrite(nn.Module):
    """Erase from the memory slots and add to them, after the Neural Turing Machine (Graves 2014).

        M'_i = M_i * prod_t (1 - W_t,i E_t) + mean_t (1 - W_t,i A_t)

    W is the softmax over the m slots of an MLP of M. E and A are T vectors each, computed from the
    output tokens. The "1 -" of the second term and the missing sigmoid on E are those of the authors'
    code; the Neural Turing Machine would add sum_t W_t,i A_t. So the memory is not bounded: with
    fresh weights its values grow to some hundreds in 50 steps, and overflow before step 300.

    W depends on the memory alone, so slots that are identical stay identical: the memory must not
    start at zero. Any memory size m works.
    """

    def __init__(
        self,
        width: int,
        process_size: int,
        num_tokens: int = WRITE_TOKENS,
        hidden: int = WRITE_HIDDEN,
    ) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.select = Mlp(width, hidden, num_tokens)
        self.erase = WriteVectors(width, process_size, num_tokens, hidden)
        self.add = WriteVectors(width, process_size, num_tokens, hidden)

    def weights(self, memory: Tensor) -> Tensor:
        """Return W, the slots to which each of the T vectors goes.

        memory: (B, m, D). Returns (B, m, T), which sums to one over m.
        """
        logits: Tensor = self.select(self.norm(memory))
        return logits.softmax(dim=1)

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); inputs: not used; outputs: (B, r, D).
        """
        weights = self.weights(memory)
        erase, add = self.erase(outputs), self.add(outputs)  # (B, T, D)
        factors = 1 - weights.unsqueeze(-1) * erase.unsqueeze(1)  # (B, m, T, D)
        kept: Tensor = factors.prod(dim=2)  # (B, m, D)
        added: Tensor = 1 - weights @ add / add.shape[1]  # the mean over t of 1 - W_t A_t
        return memory * kept + added


class ConcatenationWrite(nn.Module):
    """Keep the newest m tokens of [M ‖ O], oldest first (the paper's "concatenation")."""

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); inputs: not used; outputs: (B, r, D).
        """
        size, new = memory.shape[1], outputs.shape[1]
        return torch.cat([memory[:, new:], outputs[:, -size:]], dim=1)


# A read in which the memory chooses what is looked at. Ours, not the TTM paper's.
#
#     Q = Q_0 + S_r(M + P_M)        Z = block(Q; [M ‖ I] + P_read)
#
# Q_0 are r learned queries, and `block` is attention of Q to memory and inputs, with a residual
# connection and an MLP. In the published read the weight of a token depends on that token alone.


class AttendingRead(nn.Module):
    """Attend to [M ‖ I] with r queries, each the sum of a learned one and a summary of the memory."""

    def __init__(
        self,
        recall: PositionedSummarizer,
        block: AttentionBlock,
        query_shape: tuple[int, int],
        num_tokens: int,
        positional_embedding: bool,
    ) -> None:
        """recall: S_r, which adds P_M. query_shape: (r, D). num_tokens: m + N, for P_read."""
        super().__init__()
        self.recall = recall
        self.block = block
        self.queries = nn.Parameter(torch.randn(1, *query_shape) * 0.02)
        position = torch.randn(1, num_tokens, query_shape[1]) * 0.02
        self.position = nn.Parameter(position) if positional_embedding else None

    def forward(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Read (B, r, D) from memory (B, m, D) and inputs (B, N, D)."""
        read: Tensor = self.block.attend(self._queries(memory), self._context(memory, inputs))
        return read

    def weights(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Return the weight of each token of [M ‖ I] in each token that is read, (B, m + N, r).

        They are the mean over the heads and sum to one over m + N.
        """
        query = self.block.queries(self._queries(memory))  # (B, nh, r, hs)
        keys, _ = self.block.keys_values(self._context(memory, inputs))
        key = self.block.heads(keys)  # (B, nh, m + N, hs)
        logits: Tensor = query @ key.transpose(-1, -2) * self.block.head_size**-0.5
        return logits.softmax(dim=-1).mean(dim=1).transpose(1, 2)

    def _queries(self, memory: Tensor) -> Tensor:
        queries: Tensor = self.queries + self.recall(memory)
        return queries

    def _context(self, memory: Tensor, inputs: Tensor) -> Tensor:
        tokens = torch.cat([memory, inputs], dim=1)
        return tokens if self.position is None else tokens + self.position


# A write with a gate for each channel of each slot. Ours, not the TTM paper's.
#
#     M' = g * M + (1 - g) * S        S = S_m([M ‖ I ‖ O] + P_write)        g = sigmoid(W LN[M ; S] + b)
#
# [M ; S] are the 2 D channels of what a slot holds and of its candidate. W is shared by the slots, and
# b is one value for each channel of each slot. At the start b spreads the slots evenly over time
# scales from 2 to `max_ticks` ticks (chrono initialisation, Tallec and Ollivier 2018): slot j keeps
# u / (1 + u) of itself a tick, b_j = log u with u in [1, max_ticks - 1].


class GatedWrite(nn.Module):
    """Mix each slot with its candidate, which a summary of all tokens makes.

    Candidates of different slots are different sums, so slots that start identical do not stay so.
    """

    def __init__(self, candidate: PositionedSummarizer, width: int, bias: Tensor) -> None:
        """candidate: S_m, which adds P_write. bias: b at the start, (m, D)."""
        super().__init__()
        self.candidate = candidate
        self.norm = layer_norm(2 * width)
        self.gate = Linear(2 * width, width, bias=False)
        self.gate_bias = nn.Parameter(bias)

    def forward(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the new memory, (B, m, D).

        memory: (B, m, D); others: inputs (B, N, D), and outputs (B, r, D) if the write sees them.
        """
        return self.mixed(memory, self.candidate(memory, *others))

    def mixed(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return what the gates make of the slots and their candidates. All tensors are (B, m, D)."""
        gates = self.gates(memory, candidate)
        # Under autocast both are of lower precision than the memory, which keeps its own.
        return torch.lerp(candidate.to(memory.dtype), memory, gates.to(memory.dtype))

    def gates(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return g, the portion of each value that is kept. All tensors are (B, m, D)."""
        pair = self.norm(torch.cat([memory, candidate], dim=-1))
        gates: Tensor = (self.gate(pair) + self.gate_bias).sigmoid()
        return gates

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the weight of each token of [memory ‖ others] in each new slot, (B, P, m).

        They sum to one over P. The gates count by their mean over the channels.
        """
        tokens = self.candidate.positioned(memory, *others)
        gates = self.gates(memory, self.candidate.summarizer(tokens)).mean(dim=-1)  # (B, m)
        kept = F.pad(torch.diag_embed(gates), (0, 0, 0, tokens.shape[1] - memory.shape[1]))
        return kept + (1 - gates).unsqueeze(1) * self.candidate.summarizer.weights(tokens)


def chrono_bias(count: int, max_ticks: float) -> Tensor:
    """Return log u for u evenly spaced in [1, max_ticks - 1], (count, 1)."""
    return torch.linspace(1, max_ticks - 1, count).log().unsqueeze(1)


# A write that visits one slot a tick, in turn. Ours, not the TTM paper's.
#
#     M' = [M_2 ‖ … ‖ M_m ‖ W]        W = g * M_1 + (1 - g) * S        S = S_1([M_1 ‖ I ‖ O] + P_write)
#
# M_1 is the slot that was visited longest ago. The gate g of its D channels is that of `GatedWrite`, so
# that the slot keeps what it holds or takes the new tokens, which are not mixed with the other slots.
# It then becomes the last slot: the memory turns by one slot a tick. Every slot is visited each m
# ticks, as in the dilated recurrent networks of Chang et al. 2017, so that what is remembered for T
# ticks passes floor(T / m) gates instead of T.
#
# At the start the gates of a visit are spread over the channels: channel i keeps u / (1 + u) of itself,
# b_i = log u with u evenly spaced in [1, max_ticks / m - 1], that is, time scales from 2 m to `max_ticks`
# ticks (chrono initialisation, Tallec and Ollivier 2018), and of 2 m ticks if `max_ticks` is shorter.


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


# The processor that applies a plain MLP to each token (the authors' `processing_unit='mlp'`).


class MlpProcessor(nn.Module):
    """Apply x <- MLP(LN x) in every layer, without residual connections, and a final LayerNorm."""

    def __init__(self, width: int, num_layers: int, mlp_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(layer_norm(width), Mlp(width, mlp_size, width)) for _ in range(num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (B, r, D) to (B, r, D)."""
        x = tokens
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out
