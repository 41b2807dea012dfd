"""The Token Turing Machine (Ryoo et al. 2022) as a temporal core: its unit, applied at every tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ttm.policy.attention import AttentionBlock, TransformerEncoder
from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore, reset_where
from ttm.policy.cores.ttm_variants import (
    AttendingRead,
    ConcatenationWrite,
    EraseAddWrite,
    GatedWrite,
    MlpProcessor,
    RingWrite,
    chrono_bias,
)
from ttm.policy.errors import UserError, require_valid_fields
from ttm.policy.layers import MlpMixer
from ttm.policy.summarizers import (
    AttentionSummarizer,
    KeepingSummarizer,
    LogitSummarizer,
    PoolingSummarizer,
    PositionedSummarizer,
    QuerySummarizer,
    Summarizer,
    TokenSummarizer,
)

# The sizes and kinds of one Token Turing Machine unit.


@dataclass(frozen=True)
class UnitConfig:
    """The values that `build_unit` takes. Construction raises `UserError` for values out of range.

    The paper's robot setting is memory_size 96, process_size 16, num_layers 8.
    """

    smallest: ClassVar[Mapping[str, int]] = MappingProxyType({"num_layers": 0, "gate_max_ticks": 2})
    """Field -> its smallest value, where that is not 1."""

    memory_size: int = 16
    """m, memory tokens."""
    process_size: int = 8
    """r, tokens that are read, processed and passed to the action head."""
    num_layers: int = 2
    """Layers of the processor."""
    num_heads: int = 4
    """Heads of the Transformer; the summariser "mha" always has 8."""
    mlp_size: int = 512
    """Hidden width of the Transformer's MLPs, of the Mixer's over channels, and of the plain MLPs."""
    bottleneck: int = 64
    """Hidden width of the summarisers' MLPs."""
    positional_embedding: bool = True
    """Whether P_read and P_write are added, which tell the summarisers the tokens apart.

    P_write exists where the write is a summary. The Transformer has an embedding of its own in any
    case, the other processors have none.
    """
    summarizer: Literal["mlp", "mha", "query", "pooling"] = "mlp"
    """S_r, and S_m where the write is a summary.

    mlp: weights by an MLP of each token (the authors' TL). mha: learned queries in 8 heads, with
    projections (TL-MHA). query: learned queries in one head, without projections (eq. 2). pooling:
    means of neighbouring tokens.
    """
    processor: Literal["transformer", "mixer", "mlp"] = "transformer"
    """Process: a Transformer encoder, an MLP-Mixer, or an MLP of each token."""
    write: Literal["summarize", "erase_add", "concatenate", "gated", "keep", "ring"] = "summarize"
    """summarize: by S_m. erase_add: erase and add, as the Neural Turing Machine (TL-AddErase).
    concatenate: keep the newest m tokens of [M ‖ O]. Not of the paper are gated, which mixes each
    slot with S_m by a learned gate, keep, an S_m whose slots start by keeping themselves, and ring,
    which visits one slot a tick, in turn, and keeps or replaces it by a learned gate."""
    token_mixing_size: int = 128
    """Hidden width of the Mixer's MLPs over tokens."""
    read: Literal["summarize", "attend"] = "summarize"
    """summarize: by S_r of [M ‖ I]. attend (not of the paper): queries made from the memory attend to
    [M ‖ I], so that what is remembered chooses what is looked at."""
    process_memory: bool = False
    """Whether Process sees the m memory tokens beside the r tokens that were read (not of the paper).

    It then processes r + m tokens, and the first r are the outputs.
    """
    write_outputs: bool = True
    """Whether the write sees the outputs O. False (not of the paper): it sees [M ‖ I] alone.

    In training, the write alone then runs tick by tick, and read and Process run on all ticks at
    once.
    """
    gate_max_ticks: int = 100
    """The longest time scale, in ticks, over which the slots of write=gated, or the channels of
    write=ring, are spread at the start."""
    keep_portion: float = 0.9
    """The portion of itself that a slot of write=keep keeps a tick at the start."""

    def __post_init__(self) -> None:
        require_valid_fields(self, self.smallest)
        if not 0 < self.keep_portion < 1:
            raise UserError(
                f"keep_portion is {self.keep_portion:g}; give a number above 0 and below 1"
            )
        if self.write == "keep" and self.summarizer not in ("mlp", "query"):
            raise UserError(
                f"write=keep does not go with summarizer={self.summarizer}, which has no logits of "
                "one head that a bias could be added to; give summarizer=mlp or query"
            )
        if not self.write_outputs and self.write in ("erase_add", "concatenate"):
            raise UserError(
                f"write={self.write} writes the outputs alone and does not go with "
                "write_outputs=false; give write=summarize, gated, keep or ring"
            )


# One step of a Token Turing Machine (Ryoo et al. 2022): read, process, write.
#
#     Z = S_r([M ‖ I] + P_read)        O = Process(Z)        M' = S_m([M ‖ I ‖ O] + P_write)
#
# M are the memory tokens, I the input tokens and O the output tokens. The order [M ‖ I ‖ O] is that
# of the authors' code; eq. 5 of the paper has [M ‖ O ‖ I]. `UnitConfig` says which options are the
# paper's and which are ours.


class TokenTuringUnit(nn.Module):
    """One step of the machine. Variants differ in the modules `read`, `process` and `write`.

    process_memory: Process also sees the memory tokens, after those that were read.
    write_outputs: the write sees the outputs.
    """

    def __init__(
        self,
        read: nn.Module,
        process: nn.Module,
        write: nn.Module,
        process_memory: bool = False,
        write_outputs: bool = True,
    ) -> None:
        super().__init__()
        self.read = read  # (memory, inputs) -> (B, r, D)
        self.process = process  # (B, r, D) -> (B, r, D), or r + m tokens
        self.write = write  # (memory, inputs, outputs) -> (B, m, D), or without outputs
        self.process_memory, self.write_outputs = process_memory, write_outputs

    def forward(self, memory_tokens: Tensor, input_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read the memory, process what was read, and write the memory.

        memory_tokens: (B, m, D); input_tokens: (B, N, D). Returns the new memory, (B, m, D), and
        the output tokens, (B, r, D).
        """
        output_tokens = self.outputs(memory_tokens, input_tokens)
        if not self.write_outputs:
            return self.write(memory_tokens, input_tokens), output_tokens
        return self.write(memory_tokens, input_tokens, output_tokens), output_tokens

    def outputs(self, memory_tokens: Tensor, input_tokens: Tensor) -> Tensor:
        """Read and process: memory (B, m, D) and inputs (B, N, D) to output tokens (B, r, D)."""
        read_tokens = self.read(memory_tokens, input_tokens)
        if not self.process_memory:
            out: Tensor = self.process(read_tokens)
            return out
        processed: Tensor = self.process(torch.cat([read_tokens, memory_tokens], dim=1))
        return processed[:, : read_tokens.shape[1]]


def build_unit(width: int, num_inputs: int, config: UnitConfig) -> TokenTuringUnit:
    """Build the unit for N = `num_inputs` tokens of D = `width` channels a step.

    Without positional embedding any other N works as well.
    """
    seen = config.process_size + config.memory_size * config.process_memory
    return TokenTuringUnit(
        read=READS[config.read](width, num_inputs, config),
        process=PROCESSORS[config.processor](width, seen, config),
        write=WRITES[config.write](width, num_inputs, config),
        process_memory=config.process_memory,
        write_outputs=config.write_outputs,
    )


def _summarizer(
    width: int, num_inputs: int, num_tokens: int, config: UnitConfig
) -> PositionedSummarizer:
    """Summarise `num_inputs` tokens of several groups to `num_tokens`."""
    summarizer = SUMMARIZERS[config.summarizer](width, num_tokens, config)
    return PositionedSummarizer(summarizer, width, num_inputs, config.positional_embedding)


def _read_by_summary(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    return _summarizer(width, config.memory_size + num_inputs, config.process_size, config)


def _read_by_attention(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    where = "the read by attention"
    return AttendingRead(
        _summarizer(width, config.memory_size, config.process_size, config),
        AttentionBlock(width, config.num_heads, config.mlp_size, where),
        (config.process_size, width),
        config.memory_size + num_inputs,
        config.positional_embedding,
    )


def _write_by_summary(width: int, num_inputs: int, config: UnitConfig) -> PositionedSummarizer:
    return _summarizer(width, _written_from(num_inputs, config), config.memory_size, config)


def _write_by_gates(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    candidate = _write_by_summary(width, num_inputs, config)
    bias = chrono_bias(config.memory_size, config.gate_max_ticks).repeat(1, width)
    return GatedWrite(candidate, width, bias)


def _write_by_ring(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    visited = 1 + _written_from(num_inputs, config) - config.memory_size
    candidate = _summarizer(width, visited, 1, config)
    return RingWrite(candidate, width, config.memory_size, config.gate_max_ticks)


def _write_by_keeping(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    write = _write_by_summary(width, num_inputs, config)
    assert isinstance(write.summarizer, LogitSummarizer)  # as the configuration has checked
    tokens = _written_from(num_inputs, config)
    write.summarizer = KeepingSummarizer(
        write.summarizer, config.memory_size, tokens, config.keep_portion
    )
    return write


def _written_from(num_inputs: int, config: UnitConfig) -> int:
    """Return the number of tokens that a write by summary sees."""
    return config.memory_size + num_inputs + config.process_size * config.write_outputs


SUMMARIZERS: Mapping[str, Callable[[int, int, UnitConfig], Summarizer]] = MappingProxyType(
    {
        "mlp": lambda width, num_tokens, c: TokenSummarizer(width, num_tokens, c.bottleneck),
        "mha": lambda width, num_tokens, c: AttentionSummarizer(width, num_tokens),
        "query": lambda width, num_tokens, c: QuerySummarizer(width, num_tokens),
        "pooling": lambda width, num_tokens, c: PoolingSummarizer(num_tokens),
    }
)
READS: Mapping[str, Callable[[int, int, UnitConfig], nn.Module]] = MappingProxyType(
    {"summarize": _read_by_summary, "attend": _read_by_attention}
)
PROCESSORS: Mapping[str, Callable[[int, int, UnitConfig], nn.Module]] = MappingProxyType(
    {
        "transformer": lambda width, num_tokens, c: TransformerEncoder(
            width, num_tokens, c.num_layers, c.num_heads, c.mlp_size, c.process_size
        ),
        "mixer": lambda width, num_tokens, c: MlpMixer(
            width, num_tokens, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda width, num_tokens, c: MlpProcessor(width, c.num_layers, c.mlp_size),
    }
)
WRITES: Mapping[str, Callable[[int, int, UnitConfig], nn.Module]] = MappingProxyType(
    {
        "summarize": _write_by_summary,
        "erase_add": lambda width, num_inputs, c: EraseAddWrite(width, c.process_size),
        "concatenate": lambda width, num_inputs, c: ConcatenationWrite(),
        "gated": _write_by_gates,
        "keep": _write_by_keeping,
        "ring": _write_by_ring,
    }
)


@dataclass(frozen=True)
class TokenTuringConfig(UnitConfig, CoreConfig):
    """The values of the unit, and what happens to its memory between ticks and episodes."""

    memory: bool = True
    """False: every tick starts from the initial memory. The same network is then memoryless."""
    initial_memory: Literal["zeros", "learned"] = "zeros"
    """The memory at the start of an episode. learned: m tokens, trained with the other weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.write == "erase_add" and self.initial_memory == "zeros":
            raise UserError(
                "write=erase_add does not go with initial_memory=zeros: it tells the memory's slots apart by "
                "what they hold, so slots that start identical stay so for ever; give initial_memory=learned"
            )

    def build(self, width: int, num_inputs: int) -> TokenTuringMachine:
        """See `CoreConfig.build`."""
        return TokenTuringMachine(width, num_inputs, self)


class TokenTuringMachine(TemporalCore):
    """A unit whose memory is the state: {"memory": (B, m, D)}."""

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.num_outputs = config.process_size
        self.memory_shape = (config.memory_size, width)
        self.keeps_memory = config.memory
        self.unit = build_unit(width, num_inputs, config)
        self.initial_memory = (
            nn.Parameter(torch.randn(self.memory_shape) * 0.02)
            if config.initial_memory == "learned"
            else None
        )

    def initial_state(self, batch_size: int) -> CoreState:
        """Return zeros or the learned tokens, (B, m, D)."""
        if self.initial_memory is not None:
            return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}
        like = next(self.parameters())
        zeros = torch.zeros(batch_size, *self.memory_shape, device=like.device, dtype=like.dtype)
        return {"memory": zeros}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run the unit; see `TemporalCore.step`. Without memory, the new state is the initial one."""
        memory, outputs = self.unit(state["memory"], tokens)
        return outputs, {"memory": memory} if self.keeps_memory else self.initial_state(len(memory))

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore.forward`.

        Without memory, all ticks run at once. With a write that does not see the outputs, the write
        alone runs tick by tick, or m ticks at once if it visits one slot a tick.
        """
        if self.keeps_memory and self.unit.write_outputs:
            return super().forward(tokens, state, episode_start)
        memories, state = self._memories(tokens, state, episode_start)
        outputs = self.unit.outputs(memories.flatten(0, 1), tokens.flatten(0, 1))  # (B * T, r, D)
        return outputs.reshape(*tokens.shape[:2], *outputs.shape[1:]), state  # (B, T, r, D)

    def _memories(
        self, tokens: Tensor, state: CoreState | None, episode_start: Tensor | None
    ) -> tuple[Tensor, CoreState]:
        """Return the memories that the ticks read, (B, T, m, D), and the state after the last."""
        initial = self.initial_state(len(tokens))
        if not self.keeps_memory:
            return initial["memory"].unsqueeze(1).expand(-1, tokens.shape[1], -1, -1), initial
        state = initial if state is None else state
        if isinstance(self.unit.write, RingWrite) and not _restarts(episode_start):
            if episode_start is not None:
                state = reset_where(episode_start[:, 0], state, initial)
            many, last = self.unit.write.over_ticks(state["memory"], tokens)
            return many, {"memory": last}
        memories = []
        for tick, now in enumerate(tokens.unbind(dim=1)):
            if episode_start is not None:
                state = reset_where(episode_start[:, tick], state, initial)
            memories.append(state["memory"])
            state = {"memory": self.unit.write(state["memory"], now)}
        return torch.stack(memories, dim=1), state


def _restarts(episode_start: Tensor | None) -> bool:
    """Return whether an episode starts after the first tick."""
    return episode_start is not None and bool(episode_start[:, 1:].any())
