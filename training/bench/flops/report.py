"""The tables that `ttm bench flops` prints, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from ttm.policy.cores.hourglass.hierarchy import parse_hierarchy
from ttm.policy.cores.hourglass.hourglass import HourglassConfig
from ttm.policy.cores.registry import CORES, sized_like
from ttm.policy.network.policy import PRESETS
from ttm.training.bench.flops.counting import CountedStep, counted_step
from ttm.training.bench.flops.hand_counts import step_by_hand
from ttm.training.bench.flops.hierarchy_costs import HierarchyCost
from ttm.training.bench.flops.operations import Operations, StepOperations
from ttm.training.bench.flops.ttm_tables import WIDTH, Row, paper_tables
from ttm.training.common.tables import compact_table

CONVENTION = """\
Operations of one step at batch 1, without the image encoder. A multiply-add counts as one.

  counter   torch.utils.flop_counter on a step of the module, halved: it takes two for a multiply-add. It sees
            matrix products alone; attention runs as plain matrix products, so that it is counted.
  by hand   the same from closed formulas of the sizes.
  all       by hand, with element-wise work at half: one operation for each addition, multiplication or division
            of one value; none for exp, tanh, sigmoid and roots. A layer norm takes 7 a value, gelu 8, softmax 4,
            a bias, a residual and the scaling of queries 1. XLA counts so, with two for a multiply-add; Scenic,
            the authors' framework, halves its count where a multiply-add is to be one.
  paper     Ryoo et al. 2022, tables 2 to 5; — where a figure or its setting is not known for certain here.

Below each table: how far the matrix products alone, and all, are from the paper's figure, and the element-wise
work that lies between, in GFLOPs as it enters "all".

The paper's setting: width 768 (ViViT-B's; its "hidden size of 512" is the MLPs'), MLP 512, 4 layers, 12 heads,
bottleneck 64, token-mixing MLP 128, m = 96, r = 16, no outer positional embedding.
"""

LAYER_NORMS = """\
What remains above the paper is at most 0.8 %. With 6 operations a value of a layer norm in place of 7, every
figure of tables 2 and 3 comes out as printed in the paper, to its last digit (the recurrent Transformer's without
our read); which form the authors counted is not known here.
"""

CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the simulated kitchen's robot; they set the number of tokens a tick in the table of cores."""


@dataclass(frozen=True)
class Measured:
    """One model with both of its counts."""

    row: Row
    counted: CountedStep
    by_hand: StepOperations

    @property
    def matrix_gflops(self) -> float:
        return self.by_hand.whole.matrix / 1e9

    @property
    def gflops(self) -> float:
        """With element-wise work at half."""
        return self.by_hand.whole.total / 1e9

    def ratio(self, gflops: float) -> float | None:
        """To the paper's figure."""
        return None if self.row.paper_gflops is None else gflops / self.row.paper_gflops


def measure(row: Row, width: int = WIDTH) -> Measured:
    """Both counts of a row."""
    return Measured(
        row,
        counted_step(row.config, width, row.num_inputs),
        step_by_hand(row.config, width, row.num_inputs),
    )


def measure_tables() -> list[tuple[str, list[Measured]]]:
    """Title and rows of each of the paper's tables."""
    return [(table.title, [measure(row) for row in table.rows]) for table in paper_tables()]


def measure_cores(preset: str) -> list[Measured]:
    """Every core of this project at the sizes of one preset."""
    config = PRESETS[preset]
    tokens = (
        config.tokens_per_camera * CAMERAS + PROPRIOCEPTION + 2
    )  # and previous action, instruction
    return [
        measure(Row(kind, sized_like(kind, config.core), tokens), config.width) for kind in CORES
    ]


def hourglass_sizes(preset: str) -> tuple[HourglassConfig, int]:
    """Configuration and width of the preset's Hourglass."""
    config = sized_like("hourglass", PRESETS[preset].core)
    assert isinstance(config, HourglassConfig)
    return config, PRESETS[preset].width


def print_tables(console: Console, tables: Sequence[tuple[str, Sequence[Measured]]]) -> None:
    """The paper's tables, each with a line of explanation for every row."""
    for title, rows in tables:
        columns = (
            "model",
            "n",
            "counter",
            "by\nhand",
            "all",
            "paper",
            "matrix\n/ paper",
            "all\n/ paper",
        )
        table = compact_table(f"{title} (GFLOPs a step)", columns)
        for measured in rows:
            table.add_row(measured.row.name, str(measured.row.num_inputs), *_figures(measured))
        console.print(table)
        for measured in rows:
            console.print(f"  {explanation(measured)}", soft_wrap=True)
        console.print()
    console.print(LAYER_NORMS, soft_wrap=True)


def print_cores(console: Console, cores: Sequence[Measured], preset: str) -> None:
    """One line for each core: what people compare who choose one."""
    config = PRESETS[preset]
    title = (
        f"Every core at the sizes of the {preset} preset (MFLOPs a tick)\n"
        f"width {config.width}, {cores[0].row.num_inputs} tokens a tick: "
        f"{CAMERAS} cameras, {PROPRIOCEPTION} vectors of proprioception, action, instruction"
    )
    columns = ("core", "parameters", "counter", "by\nhand", "all", "state\n(floats)")
    table = compact_table(title, columns)
    for core in cores:
        table.add_row(
            core.row.name,
            f"{core.counted.parameters:,}",
            f"{core.counted.multiply_adds / 1e6:.2f}",
            f"{core.matrix_gflops * 1e3:.2f}",
            f"{core.gflops * 1e3:.2f}",
            f"{core.counted.state_values:,}",
        )
    console.print(table)
    hierarchy = hourglass_sizes(preset)[0].hierarchy
    cost = float(parse_hierarchy(hierarchy).linear_cost)
    console.print(
        f"  hourglass: {hierarchy}, whose linear cost is {cost:g} layers; see below.\n",
        soft_wrap=True,
    )


def explanation(measured: Measured) -> str:
    """One line: what lies between the matrix products and the paper's figure."""
    row = measured.row
    name = f"{row.name}, n = {row.num_inputs}:"
    if row.paper_gflops is None:
        return f"{name} {row.remark}"
    matrix, everything = (
        gflops / row.paper_gflops for gflops in (measured.matrix_gflops, measured.gflops)
    )
    elements = _elements(measured.by_hand.whole)
    return (
        f"{name} matrix {_off(matrix)}, all {_off(everything)}: {elements}. {row.remark}".rstrip()
    )


def to_json(
    tables: Sequence[tuple[str, Sequence[Measured]]],
    cores: Sequence[Measured],
    preset: str,
    hierarchies: Sequence[HierarchyCost],
) -> str:
    """All figures, in operations, with the sizes that they belong to."""
    return json.dumps(
        {
            "convention": CONVENTION,
            "tables": [
                {"title": title, "rows": [_to_dict(measured, WIDTH) for measured in rows]}
                for title, rows in tables
            ],
            "cores": {
                "preset": preset,
                "rows": [_to_dict(measured, PRESETS[preset].width) for measured in cores],
            },
            "hierarchies": [asdict(row) for row in hierarchies],
        },
        indent=2,
        ensure_ascii=False,
    )


def _figures(measured: Measured) -> list[str]:
    paper = measured.row.paper_gflops
    ratios = (measured.ratio(measured.matrix_gflops), measured.ratio(measured.gflops))
    return [
        f"{measured.counted.multiply_adds / 1e9:.3f}",
        f"{measured.matrix_gflops:.3f}",
        f"{measured.gflops:.3f}",
        "—" if paper is None else f"{paper:.3f}",
        *("—" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
    ]


def _off(ratio: float) -> str:
    """How far a figure is from the paper's."""
    return f"{(ratio - 1) * 100:+.1f} %".replace("-0.0", "+0.0")


def _elements(operations: Operations) -> str:
    """The element-wise work by kind, in GFLOPs as it enters the total."""
    kinds = {
        "layer norms": operations.norms,
        "gelu and gates": operations.activations,
        "softmax": operations.softmaxes,
        "additions": operations.additions,
    }
    return ", ".join(f"{name} {count / 2e9:.4f}" for name, count in kinds.items())


def _to_dict(measured: Measured, width: int) -> dict[str, object]:
    row, whole = measured.row, measured.by_hand.whole
    return {
        "name": row.name,
        "core": asdict(row.config),
        "width": width,
        "num_inputs": row.num_inputs,
        "counter_multiply_adds": measured.counted.multiply_adds,
        "by_hand": asdict(measured.by_hand),
        "matrix_multiply_adds": whole.matrix,
        "elementwise_operations": whole.elementwise,
        "total": whole.total,
        "paper_gflops": row.paper_gflops,
        "matrix_to_paper": measured.ratio(measured.matrix_gflops),
        "total_to_paper": measured.ratio(measured.gflops),
        "state_floats": measured.counted.state_values,
        "parameters": measured.counted.parameters,
        "remark": row.remark,
    }
