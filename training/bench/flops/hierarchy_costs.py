"""Hourglass's linear cost model (Nawrot et al. 2021) beside the matrix products of our core, by hierarchy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rich.console import Console

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.training.bench.flops import operations as ops
from ttm.training.bench.flops.hand_counts import hourglass_attention, step_by_hand
from ttm.training.common.tables import compact_table

HIERARCHIES = (
    "2@1 4@4 2@1",
    "2@1 8@4 2@1",
    "3@1 8@4 3@1",
    "4@1 8@4 4@1",
    "2@1 1@3 2@1",
    "2@1 4@3 2@1",
    "2@1 8@3 2@1",
    "2@1 16@3 2@1",
    "2@1 1@2 4@4 1@2 2@1",
    "5@1 8@2 5@1",
    "5@1 24@3 5@1",
    "3@1 24@3 3@1",
)
"""The paper's."""

NOTES = """\
  model     the paper's: a layer at scale k costs 1 / k, and each change of scale a layer of its finer side.
  element   matrix products of our core for one element of a long sequence, as in training: what is coarse is worked
            out once in k ticks. Shortening and upsampling together are a layer at the fine scale and one at the
            coarse, where the model has two at the fine; but a linear map adds k products of D x D.
  tick      those of a control tick, which works out every scale each time: a robot needs a tick that always takes
            the same more than a mean that is less.
In layers at full length, {layer:,} multiply-adds each: D = {width}, MLP {mlp_size}, window {window}, rotary positions.
Relative positions add a projection of the window's ages to each layer: once in a sequence; at every tick by
PyTorch, and once at load by OpenVINO.
"""


@dataclass(frozen=True)
class HierarchyCost:
    """One hierarchy's cost, in layers at full length."""

    hierarchy: str
    model: float
    """The paper's linear cost."""
    element: float
    """Matrix products for one element of a long sequence."""
    tick: float
    """Those of a control tick."""


def measure_hierarchies(config: HourglassConfig, width: int) -> list[HierarchyCost]:
    """config: the sizes."""
    return [_measure(_of_model(config, hierarchy), width) for hierarchy in HIERARCHIES]


def print_hierarchies(
    console: Console, rows: Sequence[HierarchyCost], config: HourglassConfig, width: int
) -> None:
    """One line for each hierarchy."""
    columns = ("hierarchy", "model", "element", "/ model", "tick", "/ model")
    table = compact_table(
        "Hourglass: the paper's linear cost model, and matrix products counted", columns
    )
    for row in rows:
        figures = (row.model, row.element, row.element / row.model, row.tick, row.tick / row.model)
        table.add_row(row.hierarchy, *(f"{figure:.2f}" for figure in figures))
    console.print(table)
    config = _of_model(config, HIERARCHIES[0])
    layer = hourglass_attention(config, width, config.window).matrix
    sizes = {"width": width, "mlp_size": config.mlp_size, "window": config.window}
    console.print(NOTES.format(layer=layer, **sizes), soft_wrap=True)


def element_by_hand(config: HourglassConfig, width: int) -> Fraction:
    """Multiply-adds of matrix products for one element (tick) of a long sequence, without those that read it.

    For resampling by attention and rotary positions. What attention does not see counts nothing.
    """
    hierarchy = parse_hierarchy(config.hierarchy)
    *around, innermost = hierarchy.stages
    layer = hourglass_attention(config, width, config.window).matrix
    cost = Fraction(layer * innermost.num_layers, innermost.scale)
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        spread = ops.dense(config.process_size, width, factor * width).matrix
        # Shortening has queries at the coarse scale, keys and values at the fine one, upsampling the other way
        # round: together they are a layer at each.
        cost += Fraction(layer * (2 * stage.num_layers + 1) + spread, stage.scale)
        cost += Fraction(layer, stage.scale * factor)
    return cost


def _measure(config: HourglassConfig, width: int) -> HierarchyCost:
    layer = hourglass_attention(config, width, config.window).matrix
    return HierarchyCost(
        hierarchy=config.hierarchy,
        model=float(parse_hierarchy(config.hierarchy).linear_cost),
        element=float(element_by_hand(config, width) / layer),
        tick=step_by_hand(config, width, num_inputs=1).process.matrix / layer,
    )


def _of_model(config: HourglassConfig, hierarchy: str) -> HourglassConfig:
    """As the model has it: one token an element, resampling by attention."""
    return replace(
        config,
        hierarchy=hierarchy,
        process_size=1,
        pooling="attention",
        upsampling="attention",
        position="rotary",
    )
