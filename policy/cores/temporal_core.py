"""What every temporal core offers: the part of the policy that carries something from tick to tick.

Policy, trainer, runner and evaluator use these three calls and never ask which core they hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CoreState = dict[str, Tensor]
"""A core's memory: tensors by name, (B, ...), of sizes that never change."""


@dataclass(frozen=True)
class CoreConfig(ABC):
    """Sizes and choices of one kind of core: a frozen dataclass of plain values, listed in `cores.CORES`."""

    @abstractmethod
    def build(self, width: int, num_inputs: int) -> TemporalCore:
        """The core for `num_inputs` (N) tokens of `width` (D) a tick; `UserError` if the choices do not go together."""


class TemporalCore(nn.Module, ABC):
    """N input tokens of width D a tick -> `num_outputs` (R) output tokens of width D, and the next state."""

    num_outputs: int
    memory_names: tuple[str, ...] = ()
    """Those tensors of the state that are its memory, where there are others beside, such as cached keys and values.

    () if all are, save counts and masks. For those who look into a memory; a snapshot always has the whole state.
    """

    @abstractmethod
    def initial_state(self, batch_size: int) -> CoreState:
        """The state at an episode's start, on the module's device."""

    @abstractmethod
    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """One control tick. tokens: (B, N, D) -> outputs (B, R, D) and the new state; `state` is not changed."""

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Training: T ticks at once, equal to T calls of `step`.

        tokens: (B, T, N, D); state: None for an episode's start; episode_start: (B, T) bool, True where the
        tick is the first of an episode, so that the state is reset before it. Returns (B, T, R, D) and the state.
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
        """(B, vectors): Euclidean norms of the memory's vectors, of D channels each (cached pairs have 2 D)."""
        of_vectors = (
            name for name, value in state.items() if value.dim() > 2 and value.is_floating_point()
        )
        vectors = [state[name].flatten(1, -2) for name in self.memory_names or of_vectors]
        # In double precision: squares of a memory that runs away overflow long before its values do.
        return torch.cat([part.double().norm(dim=-1) for part in vectors], dim=1)


def reset_where(mask: Tensor, state: CoreState, initial: CoreState) -> CoreState:
    """Elements of the batch where `mask` (B,) is True take `initial`, the others keep `state`."""
    return {
        name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), initial[name], value)
        for name, value in state.items()
    }
