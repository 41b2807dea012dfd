"""The operations of one step of Hourglass, counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.training.bench.flops import layer_counts as layers
from ttm.training.bench.flops.operations import Operations


def hourglass_process(config: HourglassConfig, width: int) -> Operations:
    """Count the layers of every scale and the resampling between them, for one element of each scale.

    A control tick computes the coarse elements at every tick.
    """
    hierarchy, new = parse_hierarchy(config.hierarchy), config.process_size
    *around, innermost = hierarchy.stages
    process = layers.residual(new, width) + layers.layer_norm(new, width)
    process += hourglass_layer(config, width, config.window) * innermost.num_layers
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        process += hourglass_layer(config, width, config.window) * (2 * stage.num_layers)
        process += SHORTENINGS[config.pooling](config, width, factor)
        process += UPSAMPLINGS[config.upsampling](config, width, factor)
        process += layers.residual(new, width)
    return process


def hourglass_layer(
    config: HourglassConfig, width: int, elements: int, spacing: int = 1
) -> Operations:
    """Count one layer: r new keys and values, then r tokens that attend to those of `elements` elements.

    spacing: the distance between successive elements, in elements of the finer scale.
    """
    new, seen = config.process_size, config.process_size * elements
    block = layers.keys_values(new, width) + layers.cross_block(
        new, seen, width, config.num_heads, config.mlp_size
    )
    if config.position == "rotary":
        return block + layers.rotation(new, width) + layers.rotation(seen, width)
    return block + layers.relative_positions(
        new, seen, config.window * spacing, width, config.num_heads
    )


SHORTENINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "average": lambda c, width, k: layers.residual(k * c.process_size, width),
        "linear": lambda c, width, k: layers.dense(c.process_size, k * width, width),
        "attention": lambda c, width, k: (
            layers.residual(k * c.process_size, width) + hourglass_layer(c, width, c.window)
        ),
    }
)
"""Value of `pooling` -> the count of k elements becoming one."""

UPSAMPLINGS: Mapping[str, Callable[[HourglassConfig, int, int], Operations]] = MappingProxyType(
    {
        "repeat": lambda c, width, k: Operations(),
        "linear": lambda c, width, k: layers.dense(c.process_size, width, k * width),
        "attention": lambda c, width, k: (
            layers.dense(c.process_size, width, k * width)
            + layers.residual(c.process_size, width)
            + hourglass_layer(c, width, c.window + 1, spacing=k)
        ),
    }
)
"""Value of `upsampling` -> the count of one element becoming k."""
