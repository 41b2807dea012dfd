"""Frame stacking: a Transformer encoder over the tokens of the last ticks.

RT-1 (Brohan et al. 2022) does this with the tokens of 6 images.
"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.cores.windowed_core import WindowedConfig, WindowedCore
from ttm.policy.layers.transformer import TransformerEncoder


@dataclass(frozen=True)
class FrameStackingConfig(WindowedConfig):
    """The sizes of the window and of the encoder."""

    num_heads: int = 4

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig.build`. `num_heads` must divide `width`."""
        encoder = TransformerEncoder(
            width, self.num_tokens, self.num_layers, self.num_heads, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, encoder)
