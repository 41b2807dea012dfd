"""The tables of counted operations that `ttm bench flops` prints, and their figures as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.network.config import PresetName
from ttm.policy.network.presets import PRESETS
from ttm.training.bench.flops.measure import (
    CAMERAS,
    PROPRIOCEPTION,
    Measured,
    hourglass_sizes,
)
from ttm.training.bench.flops.operations import Operations
from ttm.training.bench.report import decimals, rows_table

CONVENTION = """\
Operations of one step at batch 1, without the image encoder. A multiply-add counts as one.

  counter   torch.utils.flop_counter on a step of the module, halved, because it takes two for a
            multiply-add. It sees matrix products alone; attention runs as plain matrix products, so
            that it is counted.
  by hand   the same from formulas of the sizes; — for a core without formulas.
  all       by hand, plus half of the element-wise operations: one for each addition, multiplication or
            division of one value; none for exp, tanh, sigmoid and roots. A layer norm takes 7 a value,
            gelu 8, softmax 4, a bias, a residual and the scaling of queries 1. XLA counts in this way,
            with two for a multiply-add; Scenic, the authors' framework, halves the count of XLA.
  paper     Ryoo et al. 2022, tables 2 to 5; — where a figure or its setting is not known for certain.

Below each table: the distance of the matrix products alone, and of all operations, from the paper's
figure, and the element-wise work between the two, in GFLOPs as it enters "all".

The paper's setting: width 768 (that of ViViT-B; the "hidden size of 512" is that of the MLPs), MLP 512,
4 layers, 12 heads, bottleneck 64, token-mixing MLP 128, m = 96, r = 16, no outer positional embedding.
"""

LAYER_NORMS = """\
Our figures are above the paper's by at most 0.8 %. With 6 operations a value of a layer norm in place of
7, every figure of tables 2 and 3 is equal to the printed one to its last digit (for the recurrent
Transformer, without our read). Which form the authors counted is not known.
"""


def paper_table(title: str, rows: Sequence[Measured]) -> Table:
    """Return one of the paper's tables."""
    return rows_table(
        f"{title} (GFLOPs a step)",
        {
            "model": lambda m: m.row.name,
            "n": lambda m: str(m.row.num_inputs),
            "counter": lambda m: f"{m.counted.multiply_adds / 1e9:.3f}",
            "by\nhand": lambda m: decimals(m.matrix_gflops, 3),
            "all": lambda m: decimals(m.gflops, 3),
            "paper": lambda m: decimals(m.row.paper_gflops, 3),
            "matrix\n/ paper": lambda m: decimals(m.to_paper(m.matrix_gflops), 3),
            "all\n/ paper": lambda m: decimals(m.to_paper(m.gflops), 3),
        },
        rows,
    )


def explanations(rows: Iterable[Measured]) -> str:
    """Return one line for each row of a paper's table."""
    return "".join(f"  {explanation(measured)}\n" for measured in rows)


def explanation(measured: Measured) -> str:
    """Return one line on the distance of both counts from the paper's figure."""
    row = measured.row
    name = f"{row.name}, n = {row.num_inputs}:"
    matrix, everything = (
        measured.to_paper(gflops) for gflops in (measured.matrix_gflops, measured.gflops)
    )
    if measured.by_hand is None or matrix is None or everything is None:
        return f"{name} {row.remark}"
    elements = _elements(measured.by_hand.whole)
    distances = f"matrix {_distance(matrix)}, all {_distance(everything)}"
    return f"{name} {distances}: {elements}. {row.remark}".rstrip()


def core_table(cores: Sequence[Measured], preset: PresetName) -> Table:
    """Return the table with one line for each core, for the choice of a core."""
    return rows_table(
        f"Every core at the sizes of the {preset} preset (MFLOPs a tick)\n"
        f"width {PRESETS[preset].width}, {cores[0].row.num_inputs} tokens a tick: "
        f"{CAMERAS} cameras, {PROPRIOCEPTION} vectors of proprioception, action, instruction",
        {
            "core": lambda m: m.row.name,
            "parameters": lambda m: f"{m.counted.parameters:,}",
            "counter": lambda m: f"{m.counted.multiply_adds / 1e6:.2f}",
            "by\nhand": lambda m: _mega(m.matrix_gflops),
            "all": lambda m: _mega(m.gflops),
            "state\n(floats)": lambda m: f"{m.counted.state_values:,}",
        },
        cores,
    )


def core_notes(preset: PresetName) -> str:
    """Return the note on the hierarchy of Hourglass in the table of cores."""
    hierarchy = hourglass_sizes(preset).hierarchy
    cost = float(parse_hierarchy(hierarchy).linear_cost)
    return f"  hourglass: {hierarchy}, with a linear cost of {cost:g} layers; see below.\n"


def to_dict(measured: Measured, width: int) -> dict[str, Any]:
    """Return all figures of a row, in operations, with the sizes that they belong to."""
    row, by_hand = measured.row, measured.by_hand
    whole = None if by_hand is None else by_hand.whole
    return {
        "name": row.name,
        "core": asdict(row.config),
        "width": width,
        "num_inputs": row.num_inputs,
        "counter_multiply_adds": measured.counted.multiply_adds,
        "by_hand": None if by_hand is None else asdict(by_hand),
        "matrix_multiply_adds": None if whole is None else whole.matrix,
        "elementwise_operations": None if whole is None else whole.elementwise,
        "total": None if whole is None else whole.total,
        "paper_gflops": row.paper_gflops,
        "matrix_to_paper": measured.to_paper(measured.matrix_gflops),
        "total_to_paper": measured.to_paper(measured.gflops),
        "state_floats": measured.counted.state_values,
        "parameters": measured.counted.parameters,
        "remark": row.remark,
    }


def _mega(gflops: float | None) -> str:
    return decimals(None if gflops is None else gflops * 1e3, 2)


def _distance(ratio: float) -> str:
    """Return the distance of a figure from the paper's."""
    return f"{(ratio - 1) * 100:+.1f} %".replace("-0.0", "+0.0")


def _elements(operations: Operations) -> str:
    """Return the element-wise work by kind, in GFLOPs as it enters the total."""
    kinds = {
        "layer norms": operations.norms,
        "gelu and gates": operations.activations,
        "softmax": operations.softmaxes,
        "additions": operations.additions,
    }
    return ", ".join(f"{name} {count / 2e9:.4f}" for name, count in kinds.items())
