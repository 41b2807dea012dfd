"""Variants of the Token Turing Machine: the paper's other modules, and ours.

Of the paper and its code (Ryoo et al. 2022; Scenic, projects/token_turing) are all but the writes
`GatedWrite` and `RingWrite`, the read `AttendingRead`, and the machines whose Process sees the memory or
whose write does not see the outputs. A read is called with memory and inputs, a write with memory, inputs
and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreState, reset_where
from ttm.policy.cores.ttm import (
    Summarizer,
    TokenTuringConfig,
    TokenTuringMachine,
    TokenTuringMachineUnit,
    make_summarizer,
)
from ttm.policy.layers import (
    AttentionBlock,
    Mlp,
    MlpMixer,
    head_size,
    layer_norm,
    merge_heads,
    split_heads,
)

MHA_HEADS = 8
"""The number of heads of the authors' TokenLearnerMHA. It does not follow the Transformer's."""


class TokenLearnerMHA(Summarizer):
    """K learned queries attend to the tokens in several heads, without LayerNorm and residual.

    The result passes through projections, so it is not the sum of the tokens by `weights`, which are
    the mean over the heads. It may be larger than any token, so that the memory may grow without bound
    from tick to tick.
    """

    def __init__(self, width: int, num_tokens: int, num_heads: int = MHA_HEADS) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size(width, num_heads, "the summariser 'mha'")
        self.queries = nn.Parameter(torch.randn(1, num_tokens, width) * 0.02)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)  # one matrix product for both
        self.out = nn.Linear(width, width)
        for layer in (self.query, self.key_value, self.out):
            # As Flax does for attention: a normal of variance 1 / inputs, cut at 2 deviations.
            # 0.8796… is the deviation that remains of 1 after the cut.
            deviation = layer.in_features**-0.5 / 0.87962566103423978
            nn.init.trunc_normal_(layer.weight, 0, deviation, -2 * deviation, 2 * deviation)
            nn.init.zeros_(layer.bias)

    def weights(self, tokens: Tensor) -> Tensor:
        query, key, _ = self._heads(tokens)
        return _mean_weights(query, key)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(*self._heads(tokens))  # (B, nh, K, hs)
        return self.out(merge_heads(mixed))

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query, (B, nh, K, hs), and key and value, (B, nh, P, hs) each."""
        query = split_heads(self.query(self.queries), self.num_heads)
        both = self.key_value(tokens).unflatten(-1, (2, self.num_heads, self.head_size))
        key, value = both.permute(2, 0, 3, 1, 4).unbind()  # from (B, P, 2, nh, hs)
        return query.expand(tokens.shape[0], -1, -1, -1), key, value


def _mean_weights(query: Tensor, key: Tensor) -> Tensor:
    """Return the weight of each key for each query, by the mean of the heads, (B, P, K)."""
    logits = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, nh, K, P)
    return logits.softmax(dim=-1).mean(dim=1).transpose(1, 2)


class QuerySummarizer(Summarizer):
    """Compare K learned queries with the tokens, in one head: softmax(q_i V^T / sqrt(d)) V (eq. 2)."""

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(num_tokens, width) * 0.02)
        self.scale = width**-0.5

    def logits(self, tokens: Tensor) -> Tensor:
        return tokens @ self.queries.T * self.scale


class PoolingSummarizer(Summarizer):
    """Average K runs of neighbouring tokens (the paper's "pooling"), which may share a token."""

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens

    def weights(self, tokens: Tensor) -> Tensor:
        """Pool the identity matrix, which then holds the weights; see `Summarizer.weights`."""
        identity = torch.eye(tokens.shape[1], device=tokens.device, dtype=tokens.dtype)[None]
        weights = F.adaptive_avg_pool1d(identity, self.num_tokens)
        return weights.expand(tokens.shape[0], -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(tokens.transpose(1, 2), self.num_tokens).transpose(1, 2)


def make_mixer(width: int, num_tokens: int, config: TokenTuringConfig) -> MlpMixer:
    """Return an MLP-Mixer over the tokens that are processed."""
    sizes = config.num_layers, config.token_mixing_size, config.mlp_size
    return MlpMixer(width, num_tokens, *sizes)


class MlpProcessor(nn.Module):
    """Apply x <- MLP(LN x) in every layer, without residual connections, and a final LayerNorm."""

    def __init__(self, width: int, num_tokens: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(layer_norm(width), Mlp(width, config.mlp_size, width))
            for _ in range(config.num_layers)
        )
        self.norm = layer_norm(width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class AttendingRead(nn.Module):
    """Let the memory choose what to look at: ours, not the paper's.

        Q = Q_0 + S_r(M + P_M)        Z = block(Q; [M ‖ I] + P_read)

    Q_0 are r learned queries. In the published read the weight of a token depends on that token alone.
    """

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        m, r = config.memory_size, config.process_size
        self.recall = make_summarizer(width, m, r, config)
        sizes = config.num_heads, config.mlp_size
        self.block = AttentionBlock(width, *sizes, "the read by attention")
        self.queries = nn.Parameter(torch.randn(1, r, width) * 0.02)
        position = torch.randn(1, m + num_inputs, width) * 0.02
        self.position = nn.Parameter(position) if config.positional_embedding else None

    def forward(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Read (B, r, D) from memory (B, m, D) and inputs (B, N, D)."""
        return self.block.attend(self.queries + self.recall(memory), self._context(memory, inputs))

    def weights(self, memory: Tensor, inputs: Tensor) -> Tensor:
        """Return the weight of each token of [M ‖ I] in each token read, (B, m + N, r): means of heads."""
        query = self.block.queries(self.queries + self.recall(memory))  # (B, nh, r, hs)
        keys, _ = self.block.keys_values(self._context(memory, inputs))
        return _mean_weights(query, self.block.heads(keys))

    def _context(self, memory: Tensor, inputs: Tensor) -> Tensor:
        tokens = torch.cat([memory, inputs], dim=1)
        return tokens if self.position is None else tokens + self.position


WRITE_TOKENS, WRITE_HIDDEN = 8, 64
"""T, and the hidden width of the MLPs of `TokenAddEraseWrite`, as in the authors' code."""


class WriteVectors(nn.Module):
    """Map the r output tokens to T vectors, by an MLP over tokens and one over channels."""

    def __init__(self, width: int, process_size: int) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.token_mlp = Mlp(process_size, WRITE_HIDDEN, WRITE_TOKENS)
        self.channel_mlp = Mlp(width, WRITE_HIDDEN, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, r, D) to (B, T, D)."""
        return self.channel_mlp(self.token_mlp(self.norm(tokens).transpose(1, 2)).transpose(1, 2))


class TokenAddEraseWrite(nn.Module):
    """Erase from the memory slots and add to them, after the Neural Turing Machine (Graves 2014).

        M'_i = M_i * prod_t (1 - W_t,i E_t) + mean_t (1 - W_t,i A_t)

    W is the softmax over the m slots of an MLP of M. E and A are T vectors each, computed from the
    output tokens. The "1 -" of the second term and the missing sigmoid on E are those of the authors'
    code; the Neural Turing Machine would add sum_t W_t,i A_t. So the memory is not bounded. W depends on
    the memory alone, so the memory must not start with identical slots. Any memory size m works.
    """

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.norm = layer_norm(width)
        self.select = Mlp(width, WRITE_HIDDEN, WRITE_TOKENS)
        self.erase = WriteVectors(width, config.process_size)
        self.add = WriteVectors(width, config.process_size)

    def weights(self, memory: Tensor) -> Tensor:
        """Return W, the slots to which each of the T vectors goes: (B, m, T), of sum one over m."""
        return self.select(self.norm(memory)).softmax(dim=1)

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D), given memory and outputs (B, r, D)."""
        weights = self.weights(memory)
        erase, add = self.erase(outputs), self.add(outputs)  # (B, T, D)
        factors = 1 - weights.unsqueeze(-1) * erase.unsqueeze(1)  # (B, m, T, D)
        added = 1 - weights @ add / add.shape[1]  # the mean over t of 1 - W_t A_t
        return memory * factors.prod(dim=2) + added


class ConcatenationWrite(nn.Module):
    """Keep the newest m tokens of [M ‖ O], oldest first (the paper's "concatenation")."""

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()

    def forward(self, memory: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the new memory, (B, m, D), given memory and outputs (B, r, D)."""
        size, new = memory.shape[1], outputs.shape[1]
        return torch.cat([memory[:, new:], outputs[:, -size:]], dim=1)

    def weights(self, *groups: Tensor) -> Tensor:
        """Return the weight, 0 or 1, of each token of [M ‖ I ‖ O] in each slot, (1, P, m)."""
        sizes = [tokens.shape[1] for tokens in groups]
        one_hot = torch.eye(sum(sizes))[None]  # moved like the tokens, it shows where each went
        return self.forward(*torch.split(one_hot, sizes, dim=1)).transpose(1, 2)


class GatedWrite(nn.Module):
    """Mix each slot with its candidate by a gate for each channel: ours, not the paper's.

        M' = g * M + (1 - g) * S    S = S_m([M ‖ I ‖ O] + P_write)    g = sigmoid(W LN[M ; S] + b)

    [M ; S] are the 2 D channels of what a slot holds and of its candidate. W is shared by the slots,
    and b is one value for each channel of each slot. At the start b spreads the slots evenly over time
    scales from 2 to `gate_max_ticks` ticks (chrono initialisation, Tallec and Ollivier 2018): slot j
    keeps u / (1 + u) of itself a tick, b_j = log u with u in [1, gate_max_ticks - 1].
    """

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        slots = self._slots(config)
        seen = slots + num_inputs + config.process_size * config.write_outputs
        self.candidate = make_summarizer(width, seen, slots, config)
        self.norm = layer_norm(2 * width)
        self.gate = nn.Linear(2 * width, width, bias=False)
        self.gate_bias = nn.Parameter(self._bias(width, config))

    def _slots(self, config: TokenTuringConfig) -> int:
        return config.memory_size

    def _bias(self, width: int, config: TokenTuringConfig) -> Tensor:
        return chrono_bias(config.memory_size, config.gate_max_ticks).repeat(1, width)

    def forward(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the new memory, (B, m, D). others: inputs, and outputs if the write sees them."""
        return self.mixed(memory, self.candidate(memory, *others))

    def mixed(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return what the gates make of the slots and their candidates. All tensors are (B, m, D)."""
        gates = self.gates(memory, candidate)
        # Under autocast both are of lower precision than the memory, which keeps its own.
        return torch.lerp(candidate.to(memory.dtype), memory, gates.to(memory.dtype))

    def gates(self, memory: Tensor, candidate: Tensor) -> Tensor:
        """Return g, the portion of each value that is kept. All tensors are (B, m, D)."""
        pair = self.norm(torch.cat([memory, candidate], dim=-1))
        return (self.gate(pair) + self.gate_bias).sigmoid()

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        """Return the weight of each token of [M ‖ others] in each new slot, by mean gates, (B, P, m)."""
        tokens = self.candidate.positioned(memory, *others)
        gates = self.gates(memory, self.candidate.summarizer(tokens)).mean(dim=-1)  # (B, m)
        kept = F.pad(torch.diag_embed(gates), (0, 0, 0, tokens.shape[1] - memory.shape[1]))
        return kept + (1 - gates).unsqueeze(1) * self.candidate.summarizer.weights(tokens)


def chrono_bias(count: int, max_ticks: float) -> Tensor:
    """Return log u for u evenly spaced in [1, max_ticks - 1], (count, 1)."""
    return torch.linspace(1, max_ticks - 1, count).log().unsqueeze(1)


class RingWrite(GatedWrite):
    """Write one slot a tick, in turn, by its gates: ours, not the paper's.

        M' = [M_2 ‖ … ‖ M_m ‖ W]    W = g * M_1 + (1 - g) * S    S = S_1([M_1 ‖ I ‖ O] + P_write)

    M_1 is the slot that was visited longest ago. It keeps what it holds or takes the new tokens, and
    becomes the last slot. What is stored for T ticks passes floor(T / m) gates instead of T, as in the
    dilated recurrent networks of Chang et al. 2017. The ticks at which slots are visited tell them apart.

    At the start the gates of a visit are spread over the channels: b_i = log u with u evenly spaced in
    [1, gate_max_ticks / m - 1], that is, time scales from 2 m to `gate_max_ticks` ticks, 2 m at least.
    """

    def _slots(self, config: TokenTuringConfig) -> int:
        return 1

    def _bias(self, width: int, config: TokenTuringConfig) -> Tensor:
        return chrono_bias(width, max(config.gate_max_ticks / config.memory_size, 2)).T

    def forward(self, memory: Tensor, *others: Tensor) -> Tensor:
        return torch.cat([memory[:, 1:], super().forward(memory[:, :1], *others)], dim=1)

    def over_ticks(self, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Write T ticks of an episode, m at once, since they visit different slots.

        For summarisers with `logits`, and a write that does not see the outputs. memory: (B, m, D); inputs:
        (B, T, N, D). Returns the memories that the ticks read, before their writes, (B, T, m, D), and the
        memory after the last, (B, m, D).
        """
        summarizer, position = self.candidate.summarizer, self.candidate.position
        size, ticks = memory.shape[1], inputs.shape[1]
        of_slot, of_inputs = (0, 0) if position is None else (position[:, :1], position[:, 1:])
        # All that the inputs give to the summaries, for all ticks at once.
        tokens = (inputs + of_inputs).flatten(0, 1)  # (B * T, N, D)
        logits = summarizer.logits(tokens)  # (B * T, N, 1)
        mean = (logits.softmax(dim=1).transpose(1, 2) @ tokens).view(*inputs.shape[:2], -1)
        amount = logits.logsumexp(dim=1).view(*inputs.shape[:2], 1)
        slots = memory  # in the order of visits; tick t reads slots t to t + m
        for first in range(0, ticks, size):
            now = slice(first, min(first + size, ticks))
            oldest = slots[:, now]  # (B, K, D)
            token = oldest + of_slot
            portion = (summarizer.logits(token) - amount[:, now]).sigmoid().to(token.dtype)
            candidate = torch.lerp(mean[:, now].to(token.dtype), token, portion)
            slots = torch.cat([slots, self.mixed(oldest, candidate)], dim=1)
        memories = slots.unfold(1, size, 1).transpose(2, 3)  # (B, T + 1, m, D)
        return memories[:, :-1], memories[:, -1]

    def weights(self, memory: Tensor, *others: Tensor) -> Tensor:
        visited = super().weights(memory[:, :1], *others)  # (B, 1 + P - m, 1)
        rest = memory.shape[1] - 1
        visited = torch.cat([visited[:, :1], F.pad(visited[:, 1:], (0, 0, rest, 0))], dim=1)
        moved = torch.eye(visited.shape[1], device=memory.device)[:, 1 : rest + 1]
        return torch.cat([moved.to(visited.dtype).expand(len(memory), -1, -1), visited], dim=2)


class VariantUnit(TokenTuringMachineUnit):
    """A unit whose Process may see the memory, and whose write may not see the outputs."""

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.process_memory, self.write_outputs = config.process_memory, config.write_outputs

    def forward(self, memory_tokens: Tensor, input_tokens: Tensor) -> tuple[Tensor, Tensor]:
        output_tokens = self.outputs(memory_tokens, input_tokens)
        seen = (output_tokens,) if self.write_outputs else ()
        return self.write(memory_tokens, input_tokens, *seen), output_tokens

    def outputs(self, memory_tokens: Tensor, input_tokens: Tensor) -> Tensor:
        """Read and process: memory (B, m, D) and inputs (B, N, D) to output tokens (B, r, D)."""
        tokens = read_tokens = self.read(memory_tokens, input_tokens)
        if self.process_memory:
            tokens = torch.cat([read_tokens, memory_tokens], dim=1)
        return self.process(tokens)[:, : read_tokens.shape[1]]


class VariantMachine(TokenTuringMachine):
    """A machine of the variant unit."""

    unit_class = VariantUnit
    unit: VariantUnit

    def _outputs(self, memories: Tensor, tokens: Tensor) -> Tensor:
        """Read and process all ticks at once: memories (B, T, m, D), tokens (B, T, N, D)."""
        outputs = self.unit.outputs(memories.flatten(0, 1), tokens.flatten(0, 1))
        return outputs.reshape(*tokens.shape[:2], *outputs.shape[1:])  # (B, T, r, D)


class MemorylessMachine(VariantMachine):
    """A machine that starts every tick from the initial memory."""

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs, state = super().step(tokens, state)
        return outputs, self.initial_state(len(outputs))

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        initial = self.initial_state(len(tokens))
        memories = initial["memory"].unsqueeze(1).expand(-1, tokens.shape[1], -1, -1)
        return self._outputs(memories, tokens), initial


class InputWritingMachine(VariantMachine):
    """A machine whose write does not see the outputs: it writes all ticks, then reads and processes."""

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        initial = self.initial_state(len(tokens))
        state = initial if state is None else state
        memories, memory = self._memories(tokens, state, initial, episode_start)
        return self._outputs(memories, tokens), {"memory": memory}

    def _memories(
        self, tokens: Tensor, state: CoreState, initial: CoreState, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the memories that the ticks read, (B, T, m, D), and the memory after the last."""
        memories = []
        for tick, now in enumerate(tokens.unbind(dim=1)):
            if episode_start is not None:
                state = reset_where(episode_start[:, tick], state, initial)
            memories.append(state["memory"])
            state = {"memory": self.unit.write(state["memory"], now)}
        return torch.stack(memories, dim=1), state["memory"]


class RingMachine(InputWritingMachine):
    """A machine that writes m ticks at once while no episode starts, since they visit different slots."""

    def _memories(
        self, tokens: Tensor, state: CoreState, initial: CoreState, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if episode_start is not None:
            if episode_start[:, 1:].any():
                return super()._memories(tokens, state, initial, episode_start)
            state = reset_where(episode_start[:, 0], state, initial)
        write: Any = self.unit.write
        return write.over_ticks(state["memory"], tokens)


def make_machine(width: int, num_inputs: int, config: TokenTuringConfig) -> VariantMachine:
    """Return a machine that is not the published one."""
    if not config.memory:
        return MemorylessMachine(width, num_inputs, config)
    if config.write_outputs:
        return VariantMachine(width, num_inputs, config)
    splits = config.write == "ring" and config.summarizer in ("mlp", "query")
    return (RingMachine if splits else InputWritingMachine)(width, num_inputs, config)


Make = Callable[[int, int, TokenTuringConfig], nn.Module]
SUMMARIZERS: Mapping[str, Callable[[int, int], Summarizer]] = {
    "mha": TokenLearnerMHA, "query": QuerySummarizer, "pooling": PoolingSummarizer,
}  # fmt: skip
READS: Mapping[str, Make] = {"attend": AttendingRead}
PROCESSORS: Mapping[str, Make] = {"mixer": make_mixer, "mlp": MlpProcessor}
WRITES: Mapping[str, Make] = {
    "erase_add": TokenAddEraseWrite, "concatenate": ConcatenationWrite, "gated": GatedWrite,
    "ring": RingWrite,
}  # fmt: skip
