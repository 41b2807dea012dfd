"""A temporal MLP-Mixer (Tolstikhin et al. 2021) over the tokens of the last ticks.

The TTM paper compares with such a model in its table 2 (Ryoo et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.policy.cores.windowed_core import WindowedConfig, WindowedCore
from ttm.policy.layers.mixer import MlpMixer


@dataclass(frozen=True)
class TemporalMixerConfig(WindowedConfig):
    """The sizes of the window and of the Mixer."""

    token_mixing_size: int = 128
    """Hidden width of the MLPs over tokens."""

    def build(self, width: int, num_inputs: int) -> WindowedCore:
        """See `CoreConfig.build`."""
        mixer = MlpMixer(
            width, self.num_tokens, self.num_layers, self.token_mixing_size, self.mlp_size
        )
        return WindowedCore(width, num_inputs, self, mixer)
