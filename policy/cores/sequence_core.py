"""What the sequence models beside the Token Turing Machine share, which its paper compares it with (table 2).

Each first summarises the N tokens of a tick to r, by the MLP summariser that reads TTM's memory, so that all of
them meet the inputs in the same way and differ in what they remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.ttm.machine import PositionedSummarizer
from ttm.policy.errors import UserError
from ttm.policy.layers.token_learner import TokenSummarizer

SMALLEST: Mapping[str, int] = MappingProxyType({"window": 2})
"""Field -> the smallest value that it may have, where that is not 1. A window of one tick remembers nothing."""


@dataclass(frozen=True)
class SequenceConfig(CoreConfig):
    """The sizes that all have, named as `TokenTuringConfig`'s. `UserError` for a size that is too small."""

    process_size: int = 8
    """r, tokens that a tick's inputs are summarised to, and as many output tokens for the action head."""
    num_layers: int = 2
    bottleneck: int = 64
    """Hidden width of the summariser's MLP."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), SMALLEST.get(field.name, 1)
            if value < least:
                raise UserError(f"{field.name} is {value}; give {least} or more")


class Reading(Protocol):
    """What `SequenceCore` needs of a configuration; see `SequenceConfig`."""

    @property
    def process_size(self) -> int: ...
    @property
    def bottleneck(self) -> int: ...


class SequenceCore(TemporalCore):
    """A core whose ticks are r tokens each, once `read` has summarised them."""

    def __init__(self, width: int, num_inputs: int, config: Reading) -> None:
        super().__init__()
        self.num_outputs = config.process_size
        summarizer = TokenSummarizer(width, config.process_size, config.bottleneck)
        self.read = PositionedSummarizer(summarizer, width, num_inputs, positional_embedding=True)

    def read_all(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T, N, D) -> (B, T, r, D), the summaries of T ticks at once."""
        summaries: Tensor = self.read(tokens.flatten(0, 1))
        return summaries.reshape(*tokens.shape[:2], *summaries.shape[1:])

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. A window of one tick: for cores with a `forward` of their own, or they override this."""
        outputs, state = self.forward(tokens.unsqueeze(1), state)
        return outputs.squeeze(1), state

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on the module's device, in its type."""
        return next(self.parameters()).new_zeros(shape)


def episode_numbers(episode_start: Tensor, past: int) -> Tensor:
    """episode_start: (B, T) bool -> (B, past + T): ticks of one number are of one episode.

    The `past` ticks before the window, those that a state holds, are of episode 0.
    """
    return F.pad(episode_start.cumsum(dim=1), (past, 0))
