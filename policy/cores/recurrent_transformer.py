"""Recurrent Transformer: state tokens and input tokens pass through one Transformer encoder together.

The model of that name in TTM's table 2 (Ryoo et al. 2022); Block-Recurrent Transformers (Hutchins et al. 2022) and
the Recurrent Memory Transformer (Bulatov et al. 2022) carry tokens on in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ttm.policy.cores.sequence_core import SequenceConfig, SequenceCore
from ttm.policy.cores.temporal_core import CoreState
from ttm.policy.layers.transformer import TransformerProcessor


@dataclass(frozen=True)
class RecurrentTransformerConfig(SequenceConfig):
    """Sizes of the encoder, and how many tokens it carries on. The paper's 0.410 GFLOPs have memory_size 16."""

    memory_size: int = 16
    """m, state tokens."""
    num_heads: int = 4
    mlp_size: int = 512
    """Hidden width of the encoder's MLPs."""

    def build(self, width: int, num_inputs: int) -> RecurrentTransformer:
        """See `CoreConfig`. `UserError` if the heads do not share the width evenly."""
        return RecurrentTransformer(width, num_inputs, self)


class RecurrentTransformer(SequenceCore):
    """[state ‖ input] -> the encoder -> [new state ‖ output]. Its state is {"memory": (B, m, D)}.

    The encoder ends in a LayerNorm, which keeps the state's size the same however long the episode.
    """

    def __init__(self, width: int, num_inputs: int, config: RecurrentTransformerConfig) -> None:
        super().__init__(width, num_inputs, config)
        self.memory_size = config.memory_size
        # Of the size that the encoder's last LayerNorm gives the states after it.
        self.initial_memory = nn.Parameter(torch.randn(config.memory_size, width))
        self.encoder = TransformerProcessor(
            width,
            config.memory_size + config.process_size,
            config.num_layers,
            config.num_heads,
            config.mlp_size,
        )

    def initial_state(self, batch_size: int) -> CoreState:
        """The learned tokens."""
        return {"memory": self.initial_memory.repeat(batch_size, 1, 1)}

    def step(self, tokens: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`."""
        joined = self.encoder(
            torch.cat([state["memory"], self.read(tokens)], dim=1)
        )  # (B, m + r, D)
        return joined[:, self.memory_size :], {"memory": joined[:, : self.memory_size]}
