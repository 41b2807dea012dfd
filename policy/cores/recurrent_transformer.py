"""Recurrent Transformer: state tokens and input tokens pass through one Transformer encoder.

This is the model of that name in table 2 of the TTM paper (Ryoo et al. 2022). Block-Recurrent
Transformers (Hutchins et al. 2022) and the Recurrent Memory Transformer (Bulatov et al. 2022) carry
tokens on in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore
from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.layers.transformer import TransformerEncoder


@dataclass(frozen=True)
class RecurrentTransformerConfig(SequenceConfig):
    """The sizes of the encoder and of the state.

    The model of the paper's table 2, of 0.410 GFLOPs, has a memory_size of 16.
    """

    memory_size: int = 16
    """m, state tokens."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the encoder's MLPs."""

    def build(self, width: int, num_inputs: int) -> RecurrentTransformer:
        """See `CoreConfig.build`. `num_heads` must divide `width`."""
        return RecurrentTransformer(width, num_inputs, self)


class RecurrentTransformer(SequenceCore):
    """Map [state ‖ input] to [new state ‖ output] by an encoder.

    The state is {"memory": (B, m, D)}. The encoder ends with a LayerNorm, so the norm of the state
    does not grow with the length of the episode.
    """

    def __init__(self, width: int, num_inputs: int, config: RecurrentTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.memory_size = config.memory_size
        # Scale 1 is that of all later states, which the encoder's last LayerNorm returns.
        self.initial_memory = nn.Parameter(torch.randn(config.memory_size, width))
        self.encoder = TransformerEncoder(
            width,
            config.memory_size + config.process_size,
            config.num_layers,
            config.num_heads,
            config.mlp_size,
        )

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the learned tokens."""
        return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore.step`."""
        joined = torch.cat([state["memory"], self.read(tokens)], dim=1)  # (B, m + r, D)
        joined = self.encoder(joined)
        return joined[:, self.memory_size :], {"memory": joined[:, : self.memory_size]}
