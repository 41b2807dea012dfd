"""One step of a Token Turing Machine (Ryoo et al. 2022): read, process, write.

    Z = S_r([M ‖ I] + P_read)        O = Process(Z)        M' = S_m([M ‖ I ‖ O] + P_write)

M are the memory tokens, I the input tokens and O the output tokens. The order [M ‖ I ‖ O] is that
of the authors' code; eq. 5 of the paper has [M ‖ O ‖ I]. `UnitConfig` says which options are the
paper's and which are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ttm.policy.cores.ttm.attending_read import AttendingRead
from ttm.policy.cores.ttm.gated_write import GatedWrite, chrono_bias
from ttm.policy.cores.ttm.memory_write import ConcatenationWrite, EraseAddWrite
from ttm.policy.cores.ttm.mlp_processor import MlpProcessor
from ttm.policy.cores.ttm.ring_write import RingWrite
from ttm.policy.cores.ttm.unit_config import UnitConfig
from ttm.policy.layers.attention import AttentionBlock
from ttm.policy.layers.keeping_summarizer import KeepingSummarizer
from ttm.policy.layers.mixer import MlpMixer
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.layers.summarizers import AttentionSummarizer, PoolingSummarizer, QuerySummarizer
from ttm.policy.layers.token_learner import LogitSummarizer, Summarizer, TokenSummarizer
from ttm.policy.layers.transformer import TransformerEncoder


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
