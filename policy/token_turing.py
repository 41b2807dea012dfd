"""Token Turing Machines (Ryoo et al. 2022): an external memory of tokens, read and written every tick.

    Z = S_r([M ‖ I] + P_read)        O = Process(Z)        M' = S_m([M ‖ I ‖ O] + P_write)

The order [M ‖ I ‖ O] is that of the authors' code; the paper's eq. 5 has [M ‖ O ‖ I].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ttm.policy.temporal import CoreConfig, State, TemporalCore
from ttm.policy.token_learner import TokenSummarizer
from ttm.policy.transformer import TransformerProcessor


@dataclass(frozen=True)
class TokenTuringConfig(CoreConfig):
    """Sizes of the unit. The paper's robot setting: memory_size 96, process_size 16, num_layers 8."""

    memory_size: int = 16
    """m, memory tokens."""
    process_size: int = 8
    """r, tokens read, processed and given to the action head."""
    num_layers: int = 2
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the Transformer's MLPs."""
    bottleneck: int = 64
    """Hidden width of the summarisers' MLPs."""
    positional_embedding: bool = True
    """Adds P_read and P_write, so that summarisers know which token is which."""
    memory: bool = True
    """False: the memory is zeroed after every step, which makes the same network memoryless."""

    def build(self, width: int, num_inputs: int) -> TokenTuringMachine:
        """See `CoreConfig`."""
        return TokenTuringMachine(width, num_inputs, self)


class PositionedSummarizer(nn.Module):
    """Joins groups of tokens in the order given, adds a learned embedding of the position, summarises."""

    def __init__(self, width: int, num_inputs: int, num_tokens: int, config: TokenTuringConfig) -> None:
        super().__init__()
        self.summarizer = TokenSummarizer(width, num_tokens, config.bottleneck)
        self.position = (
            nn.Parameter(torch.randn(1, num_inputs, width) * 0.02) if config.positional_embedding else None
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
    """The TTM as a temporal core. Its state is {"memory": (B, m, D)}, zero at an episode's start."""

    def __init__(self, width: int, num_inputs: int, config: TokenTuringConfig) -> None:
        super().__init__()
        memory_size, process_size = config.memory_size, config.process_size
        self.num_outputs = process_size
        self.memory_shape = (memory_size, width)
        self.keeps_memory = config.memory
        self.unit = TokenTuringUnit(
            read=PositionedSummarizer(width, memory_size + num_inputs, process_size, config),
            process=TransformerProcessor(
                width, process_size, config.num_layers, config.num_heads, config.mlp_size
            ),
            write=PositionedSummarizer(width, memory_size + num_inputs + process_size, memory_size, config),
        )

    def initial_state(self, batch_size: int) -> State:
        """Zeros, (B, m, D)."""
        like = next(self.parameters())
        return {"memory": torch.zeros(batch_size, *self.memory_shape, device=like.device, dtype=like.dtype)}

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: (B, N, D) -> output tokens (B, r, D) and the memory written, or zeros without memory."""
        memory, outputs = self.unit(state["memory"], tokens)
        if not self.keeps_memory:
            memory = torch.zeros_like(memory)
        return outputs, {"memory": memory}
