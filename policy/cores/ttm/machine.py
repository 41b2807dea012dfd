"""The Token Turing Machine (Ryoo et al. 2022) as a temporal core: its unit, applied at every tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ttm.policy.cores.temporal_core import (
    CoreConfig,
    CoreState,
    TemporalCore,
    reset_where,
)
from ttm.policy.cores.ttm.ring_write import RingWrite
from ttm.policy.cores.ttm.unit import build_unit
from ttm.policy.cores.ttm.unit_config import UnitConfig
from ttm.policy.errors import UserError


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
