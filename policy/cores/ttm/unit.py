"""One step of a Token Turing Machine (Ryoo et al. 2022): read, process, write.

    Z = S_r([M ‖ I] + P_read)        O = Process(Z)        M' = S_m([M ‖ I ‖ O] + P_write)

M are the memory tokens, I the input tokens and O the output tokens. The order [M ‖ I ‖ O] is that
of the authors' code; eq. 5 of the paper has [M ‖ O ‖ I].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn

from ttm.policy.cores.ttm.memory_write import ConcatenationWrite, EraseAddWrite
from ttm.policy.cores.ttm.mlp_processor import MlpProcessor
from ttm.policy.cores.ttm.unit_config import UnitConfig
from ttm.policy.layers.mixer import MlpMixer
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.layers.summarizers import AttentionSummarizer, PoolingSummarizer, QuerySummarizer
from ttm.policy.layers.token_learner import Summarizer, TokenSummarizer
from ttm.policy.layers.transformer import TransformerEncoder


class TokenTuringUnit(nn.Module):
    """One step of the machine. Variants differ in the modules `read`, `process` and `write`."""

    def __init__(self, read: nn.Module, process: nn.Module, write: nn.Module) -> None:
        super().__init__()
        self.read = read  # (memory, inputs) -> (B, r, D)
        self.process = process  # (B, r, D) -> (B, r, D)
        self.write = write  # (memory, inputs, outputs) -> (B, m, D)

    def forward(self, memory_tokens: Tensor, input_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read the memory, process what was read, and write the memory.

        memory_tokens: (B, m, D); input_tokens: (B, N, D). Returns the new memory, (B, m, D), and
        the output tokens, (B, r, D).
        """
        output_tokens = self.process(self.read(memory_tokens, input_tokens))
        return self.write(memory_tokens, input_tokens, output_tokens), output_tokens


def build_unit(width: int, num_inputs: int, config: UnitConfig) -> TokenTuringUnit:
    """Build the unit for N = `num_inputs` tokens of D = `width` channels a step.

    Without positional embedding any other N works as well.
    """
    m, r = config.memory_size, config.process_size
    return TokenTuringUnit(
        read=_summarizer(width, m + num_inputs, r, config),
        process=PROCESSORS[config.processor](width, config),
        write=WRITES[config.write](width, num_inputs, config),
    )


def _summarizer(width: int, num_inputs: int, num_tokens: int, config: UnitConfig) -> nn.Module:
    """Summarise `num_inputs` tokens of several groups to `num_tokens`."""
    summarizer = SUMMARIZERS[config.summarizer](width, num_tokens, config)
    return PositionedSummarizer(summarizer, width, num_inputs, config.positional_embedding)


def _write_by_summary(width: int, num_inputs: int, config: UnitConfig) -> nn.Module:
    m, r = config.memory_size, config.process_size
    return _summarizer(width, m + num_inputs + r, m, config)


SUMMARIZERS: Mapping[str, Callable[[int, int, UnitConfig], Summarizer]] = MappingProxyType(
    {
        "mlp": lambda width, num_tokens, c: TokenSummarizer(width, num_tokens, c.bottleneck),
        "mha": lambda width, num_tokens, c: AttentionSummarizer(width, num_tokens),
        "query": lambda width, num_tokens, c: QuerySummarizer(width, num_tokens),
        "pooling": lambda width, num_tokens, c: PoolingSummarizer(num_tokens),
    }
)
PROCESSORS: Mapping[str, Callable[[int, UnitConfig], nn.Module]] = MappingProxyType(
    {
        "transformer": lambda width, c: TransformerEncoder(
            width, c.process_size, c.num_layers, c.num_heads, c.mlp_size
        ),
        "mixer": lambda width, c: MlpMixer(
            width, c.process_size, c.num_layers, c.token_mixing_size, c.mlp_size
        ),
        "mlp": lambda width, c: MlpProcessor(width, c.num_layers, c.mlp_size),
    }
)
WRITES: Mapping[str, Callable[[int, int, UnitConfig], nn.Module]] = MappingProxyType(
    {
        "summarize": _write_by_summary,
        "erase_add": lambda width, num_inputs, c: EraseAddWrite(width, c.process_size),
        "concatenate": lambda width, num_inputs, c: ConcatenationWrite(),
    }
)
