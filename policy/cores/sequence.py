"""The bases of the cores with which the Token Turing Machine is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.ttm import PositionedSummarizer, TokenLearner


@dataclass(frozen=True)
class SequenceConfig(CoreConfig):
    """The sizes that these cores share, under the same names as those of `TokenTuringConfig`."""

    process_size: int = 8
    """r, the tokens to which the inputs of a tick are summarised, and the output tokens."""
    bottleneck: int = 64
    """Hidden width of the summariser's MLP."""


class SequenceCore(TemporalCore):
    """A core that works on r tokens a tick, to which `read` summarises the N inputs.

    `read` is the summariser with which the Token Turing Machine reads. So all cores see their inputs
    in the same way and differ in their memory alone (Ryoo et al. 2022, table 2). Subclasses override
    `step`, or `forward`, or both.
    """

    def __init__(self, width: int, num_inputs: int, config: SequenceConfig) -> None:
        super().__init__()
        self.num_outputs = config.process_size
        summarizer = TokenLearner(width, config.process_size, config.bottleneck)
        self.read = PositionedSummarizer(summarizer, width, num_inputs, positional_embedding=True)

    def read_all(self, tokens: Tensor) -> Tensor:
        """Summarise T ticks at once: (B, T, N, D) to (B, T, r, D)."""
        return self.read(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs, state = self.forward(tokens.unsqueeze(1), state)
        return outputs.squeeze(1), state

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros of the device and type of the module's parameters."""
        return next(self.parameters()).new_zeros(shape)


def episode_ticks(before: Tensor, num_ticks: int, episode_start: Tensor | None) -> Tensor:
    """Return how many ticks of its episode lie before each tick of a window, (B, T) int64.

    before: (B,) int64, how many lie before the window. episode_start: (B, T) bool.
    """
    tick = torch.arange(num_ticks, device=before.device)
    ticks = before[:, None] + tick
    if episode_start is None:
        return ticks
    began = torch.where(episode_start, tick, -1).cummax(dim=1).values
    return torch.where(began >= 0, tick - began, ticks)
