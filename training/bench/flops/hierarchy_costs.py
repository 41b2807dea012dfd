"""The linear cost model of Hourglass (Nawrot et al. 2021) beside the matrix products of our core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rich.table import Table

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.training.bench.flops import layer_counts as layers
from ttm.training.bench.flops.hand_counts import hourglass
from ttm.training.bench.flops.hourglass_counts import hourglass_layer
from ttm.training.bench.report import rows_table

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
"""The hierarchies of the paper."""

NOTES = """\
  model     the paper's: a layer at scale k costs 1 / k, and each change of scale costs one layer of its
            finer side.
  element   matrix products of our core for one element of a long sequence, as in training, where coarse
            elements are computed once in k ticks. Shortening and upsampling together cost one layer at
            the fine scale and one at the coarse scale, where the model has two at the fine scale; but a
            linear map adds k products of D x D.
  tick      matrix products of a control tick, which computes every scale at every tick: for a robot, a
            constant time matters more than a low mean.
All in layers at full length, of {layer:,} multiply-adds each: D = {width}, MLP {mlp_size},
window {window}, rotary positions. Relative positions add to each layer a projection of the ages in the
window: once in a sequence; in a control tick, at every tick with PyTorch, and once at load with
OpenVINO.
"""


@dataclass(frozen=True)
class HierarchyCost:
    """The cost of one hierarchy, in layers at full length."""

    hierarchy: str
    model: float
    """The paper's linear cost."""
    element: float
    """Matrix products for one element of a long sequence."""
    tick: float
    """Matrix products of a control tick."""


def measure_hierarchies(config: HourglassConfig, width: int) -> list[HierarchyCost]:
    """Count the paper's hierarchies with the sizes of `config`."""
    return [_measure(_of_model(config, hierarchy), width) for hierarchy in HIERARCHIES]


def hierarchy_table(rows: Sequence[HierarchyCost]) -> Table:
    """Return the table with one line for each hierarchy."""
    return rows_table(
        "Hourglass: the paper's linear cost model, and matrix products counted",
        {
            "hierarchy": lambda row: row.hierarchy,
            "model": lambda row: f"{row.model:.2f}",
            "element": lambda row: f"{row.element:.2f}",
            "element\n/ model": lambda row: f"{row.element / row.model:.2f}",
            "tick": lambda row: f"{row.tick:.2f}",
            "tick\n/ model": lambda row: f"{row.tick / row.model:.2f}",
        },
        rows,
    )


def hierarchy_notes(config: HourglassConfig, width: int) -> str:
    """Return the notes below the table, with the sizes of `config`."""
    return NOTES.format(
        layer=_layer(_of_model(config, HIERARCHIES[0]), width),
        width=width,
        mlp_size=config.mlp_size,
        window=config.window,
    )


def element_by_hand(config: HourglassConfig, width: int) -> Fraction:
    """Count the multiply-adds of matrix products for one element (tick) of a long sequence.

    The count leaves out the read of the inputs. It holds for resampling by attention and rotary
    positions. What a mask hides from attention does not count.
    """
    hierarchy = parse_hierarchy(config.hierarchy)
    *around, innermost = hierarchy.stages
    layer = _layer(config, width)
    cost = Fraction(layer * innermost.num_layers, innermost.scale)
    for stage, factor in zip(around, hierarchy.factors, strict=True):
        spread = layers.dense(config.process_size, width, factor * width).matrix
        # Shortening has queries at the coarse scale, and keys and values at the fine one; upsampling
        # is the other way round. Together they cost one layer at each scale.
        cost += Fraction(layer * (2 * stage.num_layers + 1) + spread, stage.scale)
        cost += Fraction(layer, stage.scale * factor)
    return cost


def _measure(config: HourglassConfig, width: int) -> HierarchyCost:
    layer = _layer(config, width)
    return HierarchyCost(
        hierarchy=config.hierarchy,
        model=float(parse_hierarchy(config.hierarchy).linear_cost),
        element=float(element_by_hand(config, width) / layer),
        tick=hourglass(config, width, num_inputs=1).process.matrix / layer,
    )


def _layer(config: HourglassConfig, width: int) -> int:
    """Count the multiply-adds of one layer at full length."""
    return hourglass_layer(config, width, config.window).matrix


def _of_model(config: HourglassConfig, hierarchy: str) -> HourglassConfig:
    """Return `config` with what the cost model assumes: one token an element, resampling by attention."""
    return replace(
        config,
        hierarchy=hierarchy,
        process_size=1,
        pooling="attention",
        upsampling="attention",
        position="rotary",
    )
