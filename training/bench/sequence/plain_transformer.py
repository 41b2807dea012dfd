"""A causal Transformer without a window, as the baseline for memories of bounded size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ttm.policy.cores.causal_transformer import CausalTransformer, CausalTransformerConfig
from ttm.policy.cores.temporal_core import CoreState


@dataclass(frozen=True)
class PlainTransformerConfig(CausalTransformerConfig):
    """The sizes of the Transformer; `window` has no effect."""

    def build(self, width: int, num_inputs: int) -> PlainTransformer:
        """See `CoreConfig`."""
        return PlainTransformer(width, num_inputs, self)


class PlainTransformer(CausalTransformer):
    """Tokens attend to all ticks before them.

    The state is a cache of every key and value. It grows with every tick, and so does the cost of a
    tick.
    """

    def initial_state(self, batch_size: int) -> CoreState:
        """Return an empty cache."""
        return self.empty_cache(batch_size)

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; the new state is T ticks longer."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        return self.extend(tokens, state, episode_start)
