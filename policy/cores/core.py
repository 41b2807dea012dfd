"""The interface of temporal cores, which carry information from one control tick to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ttm.policy.errors import require_valid_fields

CoreState = dict[str, Tensor]
"""The memory of a core: name -> tensor of shape (B, ...). The sizes never change."""


@dataclass(frozen=True)
class CoreConfig(ABC):
    """Base of the configurations of cores: frozen dataclasses of plain values with defaults."""

    smallest: ClassVar[Mapping[str, int]] = {"window": 2}
    """Field -> its smallest value, where that is not 1. A window of one tick remembers nothing."""

    def __post_init__(self) -> None:
        require_valid_fields(self, self.smallest)

    @abstractmethod
    def build(self, width: int, num_inputs: int) -> TemporalCore:
        """Build the core for ticks of N = `num_inputs` tokens of D = `width` channels."""


class TemporalCore(nn.Module, ABC):
    """Map the N input tokens of each tick to `num_outputs` (R) output tokens, and update a state.

    All tokens have D channels. The state is a value that the caller passes and receives; the module
    itself keeps nothing. Policy, trainer, runner and evaluator use these calls alone.
    """

    num_outputs: int
    memory_names: tuple[str, ...] = ()
    """The tensors of the state that are shown as the memory, and are no caches such as keys and values.

    () stands for all floating-point tensors of more than two axes.
    """

    @abstractmethod
    def initial_state(self, batch_size: int) -> CoreState:
        """Return the state at the start of an episode, on the device of the module."""

    @abstractmethod
    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Map tokens, (B, N, D), to outputs, (B, R, D), and the new state. Does not change `state`."""

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Run T ticks, as in training. The result equals that of T calls of `step`.

        tokens: (B, T, N, D). state: None for the start of an episode. episode_start: (B, T) bool, True
        where the state is reset before the tick. Returns (B, T, R, D) and the state after the last tick.
        """
        initial = self.initial_state(tokens.shape[0])
        state = initial if state is None else state
        outputs = []
        for tick, now in enumerate(tokens.unbind(dim=1)):
            if episode_start is not None:
                state = reset_where(episode_start[:, tick], state, initial)
            output, state = self.step(now, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    def memory_norms(self, state: CoreState) -> Tensor:
        """Return the Euclidean norms of the vectors of the memory, the rows of its last axis: (B, rows)."""
        all_names = [n for n, x in state.items() if x.dim() > 2 and x.is_floating_point()]
        vectors = [state[name].flatten(1, -2) for name in self.memory_names or all_names]
        # In double precision: the squares of a diverging memory overflow long before its values.
        return torch.cat([part.double().norm(dim=-1) for part in vectors], dim=1)


def reset_where(mask: Tensor, state: CoreState, initial: CoreState) -> CoreState:
    """Return `initial` for the elements of the batch where `mask` (B,) is True, else `state`."""
    return {
        name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), initial[name], value)
        for name, value in state.items()
    }
