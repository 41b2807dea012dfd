"""The models that `ttm bench sequence` compares: chunk sizes, hierarchies, a plain Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.tlb.temporal_latent_bottleneck import TemporalLatentBottleneckConfig
from ttm.training.bench.sequence.plain_transformer import PlainTransformerConfig

PLAIN = "plain Transformer"
MLP_FACTOR = 4
"""Hidden width of the MLPs as a multiple of the width."""


@dataclass(frozen=True)
class Choices:
    """The models that are compared, and the sizes that they share. There is one token a tick."""

    chunk_sizes: Sequence[int]
    """K of the Temporal Latent Bottleneck."""
    hierarchies: Sequence[str]
    """Hierarchies of Hourglass."""
    layers: int
    """Layers of the plain Transformer, and of the Temporal Latent Bottleneck's self-attention."""
    cross_every: int
    """R: the Temporal Latent Bottleneck attends to its latents after every R-th layer."""
    num_latents: int
    """N of the Temporal Latent Bottleneck."""
    window: int
    """Number of elements, of its own scale, that each attention of Hourglass sees."""
    num_heads: int = 4


@dataclass(frozen=True)
class Contender:
    """One model."""

    name: str
    config: CoreConfig
    layers: str
    """Number of layers as text: self-attention + cross-attention, or the sum over all scales."""
    linear_cost: float | None = None
    """Cost by Hourglass's linear model, in layers at full length."""


def contenders(choices: Choices, width: int) -> list[Contender]:
    """Return the plain Transformer, then all chunk sizes, then all hierarchies.

    Raises `UserError` for a model that cannot be built.
    """
    sizes: dict[str, Any] = {
        "process_size": 1,
        "num_heads": choices.num_heads,
        "mlp_size": MLP_FACTOR * width,
    }
    plain = PlainTransformerConfig(num_layers=choices.layers, **sizes)
    made = [Contender(PLAIN, plain, str(choices.layers), float(choices.layers))]
    made += [_latent_bottleneck(choices, size, sizes) for size in choices.chunk_sizes]
    return made + [_hourglass(choices, hierarchy, sizes) for hierarchy in choices.hierarchies]


def _latent_bottleneck(choices: Choices, chunk_size: int, sizes: dict[str, Any]) -> Contender:
    config = TemporalLatentBottleneckConfig(
        num_layers=choices.layers,
        cross_every=choices.cross_every,
        num_latents=choices.num_latents,
        chunk_size=chunk_size,
        **sizes,
    )
    layers = f"{choices.layers}+{choices.layers // choices.cross_every}"
    return Contender(f"TLB, K = {chunk_size}", config, layers)


def _hourglass(choices: Choices, hierarchy: str, sizes: dict[str, Any]) -> Contender:
    # Positions are rotary as in the plain Transformer, so that they do not make the difference.
    config = HourglassConfig(hierarchy=hierarchy, window=choices.window, position="rotary", **sizes)
    parsed = parse_hierarchy(hierarchy)
    *around, innermost = parsed.stages
    layers = innermost.num_layers + sum(2 * stage.num_layers for stage in around)
    return Contender(hierarchy, config, str(layers), float(parsed.linear_cost))
