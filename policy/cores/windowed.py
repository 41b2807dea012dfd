"""Cores that look at the last few ticks and carry nothing else on: frame stacking, and the temporal MLP-Mixer.

Frame stacking by a Transformer encoder over the tokens of 6 images is RT-1's (Brohan et al. 2022); the Mixer
(Tolstikhin et al. 2021) over the tokens of a window stands in TTM's table 2 (Ryoo et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore, episode_numbers
from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.layers.mixer import MixerProcessor
from ttm.policy.layers.transformer import TransformerProcessor


@dataclass(frozen=True)
class WindowedConfig(SequenceConfig):
    """What both have."""

    window: int = 6
    """W, ticks that are looked at: the newest and those before."""
    mlp_size: int = 512
    """Hidden width of the MLPs over channels."""

    @property
    def num_tokens(self) -> int:
        """Tokens in a window."""
        return self.window * self.process_size


@dataclass(frozen=True)
class FrameStackingConfig(WindowedConfig):
    """A Transformer encoder over the window's tokens."""

    num_heads: int = 4

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig`. `UserError` if the heads do not share the width evenly."""
        encoder = TransformerProcessor(
            width, self.num_tokens, self.num_layers, self.num_heads, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, encoder)


@dataclass(frozen=True)
class TemporalMixerConfig(WindowedConfig):
    """An MLP-Mixer over the window's tokens."""

    token_mixing_size: int = 128
    """Hidden width of the MLPs over tokens."""

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig`."""
        mixer = MixerProcessor(
            width, self.num_tokens, self.num_layers, self.token_mixing_size, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, mixer)


class WindowedCore(SequenceCore):
    """Processes the summaries of the last W ticks; the newest tick's tokens are the outputs.

    Its state is {"frames": (B, W - 1, r, D)}, the summaries of the ticks before, oldest first, zeros for
    those before the episode's start. A learned embedding of their age is added to all of them.
    """

    def __init__(
        self, width: int, num_inputs: int, config: WindowedConfig, processor: nn.Module
    ) -> None:
        """processor: (B, W * r, D) -> the same."""
        super().__init__(width, num_inputs, config)
        self.window, self.width = config.window, width
        self.age = nn.Parameter(torch.randn(config.window, 1, width) * 0.02)
        self.processor = processor

    def initial_state(self, batch_size: int) -> CoreState:
        """Zeros."""
        return {"frames": self.zeros(batch_size, self.window - 1, self.num_outputs, self.width)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`."""
        frames = torch.cat([state["frames"], self.read(tokens).unsqueeze(1)], dim=1)  # (B, W, r, D)
        return self._process(frames), {"frames": frames[:, 1:]}

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`. The windows of all ticks at once."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        frames = torch.cat([state["frames"], self.read_all(tokens)], dim=1)  # (B, W - 1 + T, r, D)
        windows = frames.unfold(1, self.window, 1).movedim(-1, 2)  # (B, T, W, r, D)
        if episode_start is not None:
            number = episode_numbers(episode_start, self.window - 1).unfold(
                1, self.window, 1
            )  # (B, T, W)
            same = number == number[..., -1:]
            windows = torch.where(same[..., None, None], windows, 0)
        outputs = self._process(windows.flatten(0, 1))
        return outputs.view(*tokens.shape[:2], *outputs.shape[1:]), {"frames": windows[:, -1, 1:]}

    def _process(self, frames: Tensor) -> Tensor:
        """frames: (B, W, r, D) -> (B, r, D)."""
        out: Tensor = self.processor((frames + self.age).flatten(1, 2))
        return out[:, -self.num_outputs :]
