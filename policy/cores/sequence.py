"""The bases of the cores with which the Token Turing Machine is compared.

These cores first summarise the N tokens of a tick to r tokens, by the summariser with which the Token
Turing Machine reads. So all cores see their inputs in the same way and differ in their memory alone
(Ryoo et al. 2022, table 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttm.policy.cores.core import CoreConfig, CoreState, TemporalCore
from ttm.policy.cores.ttm import PositionedSummarizer, TokenLearner


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
        summarizer = TokenLearner(width, config.process_size, config.bottleneck)
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


@dataclass(frozen=True)
class WindowedConfig(SequenceConfig):
    """The sizes of the cores that see the last few ticks and carry nothing else: their window."""

    window: int = 6
    """W, the ticks that the core sees, the newest included."""
    mlp_size: int = 512
    """Hidden width of the MLPs over channels."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens in a window."""
        return self.window * self.process_size


class WindowedCore(SequenceCore):
    """Process the summaries of the last W ticks, and return the tokens of the newest tick.

    The state is {"frames": (B, W - 1, r, D)}: the summaries of the ticks before, oldest first, and
    zeros for ticks before the start of the episode. A learned embedding of their age is added to
    all summaries.
    """

    def __init__(
        self, width: int, num_inputs: int, config: WindowedConfig, processor: nn.Module
    ) -> None:
        """`processor` maps (B, W * r, D) to the same shape."""
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.age = nn.Parameter(torch.randn(config.window, 1, width) * 0.02)
        self.processor = processor

    def initial_state(self, batch_size: int) -> CoreState:
        """Return zeros."""
        return {"frames": self.zeros(batch_size, self.window - 1, self.num_outputs, self.width)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore.step`."""
        frames = torch.cat([state["frames"], self.read(tokens).unsqueeze(1)], dim=1)  # (B, W, r, D)
        return self._process(frames), {"frames": frames[:, 1:]}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """Process the windows of all ticks at once; see `TemporalCore.forward`."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        frames = torch.cat([state["frames"], self.read_all(tokens)], dim=1)  # (B, W - 1 + T, r, D)
        windows = frames.unfold(1, self.window, 1).movedim(-1, 2)  # (B, T, W, r, D)
        if episode_start is not None:
            number = episode_numbers(episode_start, self.window - 1)
            number = number.unfold(1, self.window, 1)  # (B, T, W)
            same = number == number[..., -1:]
            windows = torch.where(same[..., None, None], windows, 0)
        outputs = self._process(windows.flatten(0, 1))
        return outputs.view(*tokens.shape[:2], *outputs.shape[1:]), {"frames": windows[:, -1, 1:]}

    def _process(self, frames: Tensor) -> Tensor:
        """Map frames of shape (B, W, r, D) to the outputs of the newest tick, (B, r, D)."""
        out: Tensor = self.processor((frames + self.age).flatten(1, 2))
        return out[:, -self.num_outputs :]
