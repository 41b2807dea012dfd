"""Token Turing Machines (Ryoo et al. 2022): an external memory of tokens, read and written every tick.

    Z = S_r([M ‖ I] + P_read)        O = Process(Z)        M' = S_m([M ‖ I ‖ O] + P_write)

The order [M ‖ I ‖ O] is that of the authors' code; the paper's eq. 5 has [M ‖ O ‖ I]. S, Process and the
write each come in several kinds, chosen when the machine is built: see `TokenTuringConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.ttm.memory_write import ConcatenationWrite, EraseAddWrite
from ttm.policy.cores.ttm.mlp_processor import MlpProcessor
from ttm.policy.errors import UserError
from ttm.policy.layers.mixer import MixerProcessor
from ttm.policy.layers.summarizers import AttentionSummarizer, PoolingSummarizer, QuerySummarizer
from ttm.policy.layers.token_learner import Summarizer, TokenSummarizer
from ttm.policy.layers.transformer import TransformerProcessor


@dataclass(frozen=True)
class TokenTuringConfig(CoreConfig):
    """Sizes and kinds of the unit. The paper's robot setting: memory_size 96, process_size 16, num_layers 8.

    `UserError` for a kind that does not exist, a size below one, and kinds that do not go together.
    """

    memory_size: int = 16
    """m, memory tokens."""
    process_size: int = 8
    """r, tokens read, processed and given to the action head."""
    num_layers: int = 2
    num_heads: int = 4
    """Heads of the Transformer; the summariser "mha" always has 8."""
    mlp_size: int = 512
    """Hidden width of the Transformer's MLPs, of the Mixer's over channels, and of the plain MLPs."""
    bottleneck: int = 64
    """Hidden width of the summarisers' MLPs."""
    positional_embedding: bool = True
    """Adds P_read and P_write, so that summarisers know which token is which (P_write where the write is one).

    The authors' outer pair: the Transformer always has one more of its own, the other processors have none.
    """
    memory: bool = True
    """False: every step starts from the initial memory, which makes the same network memoryless."""
    summarizer: Literal["mlp", "mha", "query", "pooling"] = "mlp"
    """S_r, and S_m if the memory is written by one: an MLP of each token (the authors' TL), learned queries in 8
    heads with projections (TL-MHA), learned queries in one head without any (eq. 2), or means of neighbours."""
    processor: Literal["transformer", "mixer", "mlp"] = "transformer"
    write: Literal["summarize", "erase_add", "concatenate"] = "summarize"
    """By S_m, by erasing and adding (TL-AddErase), or by keeping the newest m tokens of [M ‖ O]."""
    initial_memory: Literal["zeros", "learned"] = "zeros"
    """The memory at an episode's start; "learned" are m tokens, trained with the rest. erase_add needs them."""
    token_mixing_size: int = 128
    """Hidden width of the Mixer's MLPs over tokens."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(
                    f"{name} is '{getattr(self, name)}'; give one of {', '.join(choices)}"
                )
        for name, least in SMALLEST.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; give {least} or more")
        if self.write == "erase_add" and self.initial_memory == "zeros":
            raise UserError(
                "write=erase_add does not go with initial_memory=zeros: it tells the memory's slots apart by "
                "what they hold, so slots that start identical stay so for ever; give initial_memory=learned"
            )

    def build(self, width: int, num_inputs: int) -> TokenTuringMachine:
        """See `CoreConfig`."""
        return TokenTuringMachine(width, num_inputs, self)


class PositionedSummarizer(nn.Module):
    """Joins groups of tokens in the order given, adds a learned embedding of the position, summarises.

    The embedding is part of what is summed. Without it the number of tokens is free.
    """

    def __init__(
        self, summarizer: Summarizer, width: int, num_inputs: int, positional_embedding: bool
    ) -> None:
        super().__init__()
        self.summarizer = summarizer
        self.position = (
            nn.Parameter(torch.randn(1, num_inputs, width) * 0.02) if positional_embedding else None
        )

    def forward(self, *groups: Tensor) -> Tensor:
        """groups: (B, P_i, D) each, of `num_inputs` tokens in all -> (B, K, D)."""
        tokens = torch.cat(groups, dim=1)
        if self.position is not None:
            tokens = tokens + self.position
        out: Tensor = self.summarizer(tokens)
        return out


class TokenTuringUnit(nn.Module):
    """One step of the machine. `read`, `process` and `write` are modules, so that variants only replace them.

    read(memory, inputs) -> (B, r, D); process(read) -> (B, r, D); write(memory, inputs, outputs) -> (B, m, D).
    """

    def __init__(self, read: nn.Module, process: nn.Module, write: nn.Module) -> None:
        super().__init__()
        self.read = read
        self.process = process
        self.write = write

    def forward(self, memory_tokens: Tensor, input_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """memory_tokens: (B, m, D); input_tokens: (B, N, D) -> new memory (B, m, D), output_tokens (B, r, D)."""
        output_tokens = self.process(self.read(memory_tokens, input_tokens))
        return self.write(memory_tokens, input_tokens, output_tokens), output_tokens


class TokenTuringMachine(TemporalCore):
    """The TTM as a temporal core. Its state is {"memory": (B, m, D)}."""

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
        """Zeros, or the learned tokens, (B, m, D)."""
        if self.initial_memory is not None:
            return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}
        like = next(self.parameters())
        return {
            "memory": torch.zeros(
                batch_size, *self.memory_shape, device=like.device, dtype=like.dtype
            )
        }

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """tokens: (B, N, D) -> output tokens (B, r, D) and the memory written, or the initial one without memory."""
        memory, outputs = self.unit(state["memory"], tokens)
        return outputs, {"memory": memory} if self.keeps_memory else self.initial_state(len(memory))

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. Without memory no tick waits for another: all at once."""
        if self.keeps_memory:
            return super().forward(tokens, state, episode_start)
        ticks = tokens.flatten(0, 1)  # (B * T, N, D)
        outputs, _ = self.step(ticks, self.initial_state(len(ticks)))
        return outputs.reshape(*tokens.shape[:2], *outputs.shape[1:]), self.initial_state(
            len(tokens)
        )


def build_unit(width: int, num_inputs: int, config: TokenTuringConfig) -> TokenTuringUnit:
    """The unit for N = `num_inputs` tokens of `width` a step; N is free without positional embeddings."""
    return TokenTuringUnit(
        read=_summarizer(width, config.memory_size + num_inputs, config.process_size, config),
        process=PROCESSORS[config.processor](width, config),
        write=WRITES[config.write](width, num_inputs, config),
    )


def _summarizer(
    width: int, num_inputs: int, num_tokens: int, config: TokenTuringConfig
) -> nn.Module:
    summarizer = SUMMARIZERS[config.summarizer](width, num_tokens, config)
    return PositionedSummarizer(summarizer, width, num_inputs, config.positional_embedding)


def _write_by_summary(width: int, num_inputs: int, config: TokenTuringConfig) -> nn.Module:
    joined = config.memory_size + num_inputs + config.process_size
    return _summarizer(width, joined, config.memory_size, config)


SUMMARIZERS: Mapping[str, Callable[[int, int, TokenTuringConfig], Summarizer]] = MappingProxyType(
    {
        "mlp": lambda width, num_tokens, config: TokenSummarizer(
            width, num_tokens, config.bottleneck
        ),
        "mha": lambda width, num_tokens, config: AttentionSummarizer(width, num_tokens),
        "query": lambda width, num_tokens, config: QuerySummarizer(width, num_tokens),
        "pooling": lambda width, num_tokens, config: PoolingSummarizer(num_tokens),
    }
)
"""Kind -> made from the width, the number of summaries and the configuration."""

PROCESSORS: Mapping[str, Callable[[int, TokenTuringConfig], nn.Module]] = MappingProxyType(
    {
        "transformer": lambda width, config: TransformerProcessor(
            width, config.process_size, config.num_layers, config.num_heads, config.mlp_size
        ),
        "mixer": lambda width, config: MixerProcessor(
            width, config.process_size, config.num_layers, config.token_mixing_size, config.mlp_size
        ),
        "mlp": lambda width, config: MlpProcessor(width, config.num_layers, config.mlp_size),
    }
)

WRITES: Mapping[str, Callable[[int, int, TokenTuringConfig], nn.Module]] = MappingProxyType(
    {
        "summarize": _write_by_summary,
        "erase_add": lambda width, num_inputs, config: EraseAddWrite(width, config.process_size),
        "concatenate": lambda width, num_inputs, config: ConcatenationWrite(),
    }
)

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "summarizer": tuple(SUMMARIZERS),
        "processor": tuple(PROCESSORS),
        "write": tuple(WRITES),
        "initial_memory": ("zeros", "learned"),
    }
)
"""Field of `TokenTuringConfig` -> the values it may have."""

SMALLEST: Mapping[str, int] = MappingProxyType(
    {
        "memory_size": 1,
        "process_size": 1,
        "num_layers": 0,
        "num_heads": 1,
        "mlp_size": 1,
        "bottleneck": 1,
        "token_mixing_size": 1,
    }
)
"""Field of `TokenTuringConfig` -> the smallest value it may have."""
