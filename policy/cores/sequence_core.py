"""The base of the cores other than the Token Turing Machine, with which its paper compares it.

These cores first summarise the N tokens of a tick to r tokens, by the MLP summariser with which the
Token Turing Machine reads. So all cores see their inputs in the same way and differ in their memory
alone (Ryoo et al. 2022, table 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from ttm.policy.cores.temporal_core import CoreConfig, CoreState, TemporalCore
from ttm.policy.layers.positioned_summarizer import PositionedSummarizer
from ttm.policy.layers.token_learner import TokenSummarizer


@dataclass(frozen=True)
class SequenceConfig(CoreConfig):
    """The sizes that these cores share, under the same names as those of `TokenTuringConfig`."""

    process_size: int = 8
    """r, the tokens to which the inputs of a tick are summarised, and the output tokens."""
    num_layers: int = 2
    bottleneck: int = 64
    """Hidden width of the summariser's MLP."""


class ReadSizes(Protocol):
    """The values of a configuration that `SequenceCore` needs; see `SequenceConfig`."""

    @property
    def process_size(self) -> int: ...
    @property
    def bottleneck(self) -> int: ...


class SequenceCore(TemporalCore):
    """A core that works on r tokens a tick, to which `read` summarises the inputs."""

    def __init__(self, width: int, num_inputs: int, config: ReadSizes) -> None:
        super().__init__()
        self.num_outputs = config.process_size
        summarizer = TokenSummarizer(width, config.process_size, config.bottleneck)
        self.read = PositionedSummarizer(summarizer, width, num_inputs, positional_embedding=True)

    def read_all(self, tokens: Tensor) -> Tensor:
        """Summarise T ticks at once: (B, T, N, D) to (B, T, r, D)."""
        summaries: Tensor = self.read(tokens.flatten(0, 1))
        return summaries.reshape(*tokens.shape[:2], *summaries.shape[1:])

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """Run `forward` on a window of one tick; see `TemporalCore.step`.

        Subclasses override this method, or `forward`, or both.
        """
        outputs, state = self.forward(tokens.unsqueeze(1), state)
        return outputs.squeeze(1), state

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros of the device and type of the module's parameters."""
        return next(self.parameters()).new_zeros(shape)


def episode_numbers(episode_start: Tensor, past: int) -> Tensor:
    """Number the episodes of each element of a batch.

    episode_start: (B, T) bool. Returns (B, past + T): ticks of the same number belong to the same
    episode. The `past` ticks before the window, which a state holds, belong to episode 0.
    """
    return F.pad(episode_start.cumsum(dim=1), (past, 0))
