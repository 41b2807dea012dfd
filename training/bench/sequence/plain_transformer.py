"""A causal Transformer without a window: what memories of bounded size are measured against."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ttm.policy.cores.causal_transformer import CausalTransformer, CausalTransformerConfig
from ttm.policy.cores.temporal_core import CoreState


@dataclass(frozen=True)
class PlainTransformerConfig(CausalTransformerConfig):
    """Its sizes; `window` has no effect."""

    def build(self, width: int, num_inputs: int) -> PlainTransformer:
        """See `CoreConfig`."""
        return PlainTransformer(width, num_inputs, self)


class PlainTransformer(CausalTransformer):
    """Tokens see all ticks before, so that the state, a cache of every key and value, and a tick's cost grow."""

    def initial_state(self, batch_size: int) -> CoreState:
        """An empty cache."""
        return self.empty_cache(batch_size)

    def forward(
        self, tokens: Tensor, state: CoreState | None = None, episode_start: Tensor | None = None
    ) -> tuple[Tensor, CoreState]:
        """See `TemporalCore`; the state has T ticks more than before."""
        state = self.initial_state(tokens.shape[0]) if state is None else state
        return self.extend(tokens, state, episode_start)
