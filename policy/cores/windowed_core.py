"""The base of the cores that see the last few ticks and carry nothing else: their window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore, episode_numbers
from ttm.policy.cores.temporal_core import CoreState


@dataclass(frozen=True)
class WindowedConfig(SequenceConfig):
    """The sizes that these cores share."""

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
