"""Count the operations of all tables of `ttm bench flops`, and report them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.config import PresetName
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.presets import PRESETS
from ttm.training.bench.common import CountedStep, Report, counted_step, decimals, rows_table
from ttm.training.bench.flops_counts import (
    Operations,
    StepOperations,
    hierarchy_notes,
    hierarchy_table,
    measure_hierarchies,
    step_by_hand,
)

# `ttm bench flops`: count the operations of a step beside the figures of two papers.


@dataclass(frozen=True)
class BenchFlopsCommand:
    """Count the operations of a step of every temporal core, beside tables 2 to 5 of the TTM paper.

    Also compares the linear cost model of the Hourglass paper with the operations of our core, for the
    paper's hierarchies. Operations are counted twice: by PyTorch's counter on a real step, and by hand
    from the sizes. Takes seconds; nothing is timed.
    """

    preset: PresetName = "tiny"
    """Sizes of the last two tables, which compare the cores of this project, and Hourglass's hierarchies."""

    json: Path | None = None
    """Also write all figures to this file."""

    def run(self) -> int:
        """Count and print; return the exit code."""

        run_bench(self.preset, self.json)
        return 0


# The rows of tables 2 to 5 of the Token Turing Machines paper (Ryoo et al. 2022), as configurations.
#
# Only the columns of cost are here; accuracies depend on data that the project does not have.
# `paper_gflops` is None where a figure of the paper, or the setting behind it, is not known for certain.

WIDTH = 768
"""The width of ViViT-B. The paper's "hidden size of 512" is that of the MLPs."""
FEW, MANY = 16, 3136
"""Input tokens a step in the paper's two settings."""

UNIT = TokenTuringConfig(
    memory_size=96,
    process_size=16,
    num_layers=4,
    num_heads=12,
    mlp_size=512,
    bottleneck=64,
    token_mixing_size=128,
    positional_embedding=False,
)
"""TTM-Transformer with the sizes that reproduce the paper's costs."""
MIXER = replace(UNIT, processor="mixer")

NOT_DETERMINED = "The paper's figure or setting is not determined here; counted for"


@dataclass(frozen=True)
class PaperRow:
    """One model with `num_inputs` input tokens a step."""

    name: str
    config: CoreConfig
    num_inputs: int = MANY
    paper_gflops: float | None = None
    remark: str = ""
    """Printed below the table: what is different about the row, or what it was counted for."""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    title: str
    rows: tuple[PaperRow, ...]


def paper_tables() -> tuple[PaperTable, ...]:
    """Return tables 2 to 5 of the paper."""
    return (
        PaperTable("Table 2: against other sequence models", _sequence_models()),
        PaperTable("Table 3: processing units", _processing_units()),
        PaperTable("Table 4: token summarisation, in read and write", _summarizers()),
        PaperTable("Table 5: memory writes", _writes()),
    )


OTHER_MODELS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "causal Transformer": (
            "transformer",
            f"{NOT_DETERMINED} 4 layers and a window of 8 ticks, cached.",
        ),
        "temporal Mixer": ("mixer", f"{NOT_DETERMINED} 4 layers over 6 ticks."),
        "LSTM": ("lstm", f"{NOT_DETERMINED} 4 layers of width 768, run for each of 16 tokens."),
        "frame stacking": (
            "frame-stacking",
            f"{NOT_DETERMINED} 4 layers over the tokens of 6 ticks.",
        ),
    }
)
"""Name in the table -> kind of core, and the remark."""


def _sequence_models() -> tuple[PaperRow, ...]:
    recurrent = sized_like("recurrent-transformer", replace(UNIT, memory_size=16))
    state_and_input = (
        "16 state tokens and 16 input tokens pass through one encoder; ours first reads the inputs "
        "(0.001)."
    )
    return (
        PaperRow("TTM-Transformer", UNIT, FEW, 0.228),
        PaperRow("TTM-Mixer", MIXER, FEW, 0.089),
        PaperRow("TTM-Transformer", UNIT, MANY, 0.842),
        PaperRow("TTM-Mixer", MIXER, MANY, 0.704),
        PaperRow("recurrent Transformer", recurrent, FEW, 0.410, state_and_input),
        *(
            PaperRow(name, sized_like(kind, UNIT), FEW, None, remark)
            for name, (kind, remark) in OTHER_MODELS.items()
        ),
    )


def _processing_units() -> tuple[PaperRow, ...]:
    return (
        PaperRow("Transformer", UNIT, paper_gflops=0.842),
        PaperRow("MLP-Mixer", MIXER, paper_gflops=0.704),
        PaperRow("MLP", replace(UNIT, processor="mlp"), paper_gflops=0.689),
    )


def _summarizers() -> tuple[PaperRow, ...]:
    ours = f"{NOT_DETERMINED} the sizes of the other rows."
    return (
        PaperRow("MLP", UNIT, paper_gflops=0.842),
        PaperRow(
            "queries, 8 heads",
            replace(UNIT, summarizer="mha"),
            paper_gflops=8.537,
            remark="The paper's figure agrees with the matrix products alone.",
        ),
        PaperRow("queries, eq. 2", replace(UNIT, summarizer="query"), remark=ours),
        PaperRow("pooling", replace(UNIT, summarizer="pooling"), remark=ours),
    )


def _writes() -> tuple[PaperRow, ...]:
    return (
        PaperRow("summarise", UNIT, paper_gflops=0.842),
        PaperRow(
            "erase and add",
            replace(UNIT, write="erase_add", initial_memory="learned"),
            paper_gflops=0.423,
            remark="Our mean of 1 - W A is one matrix product (0.0006); how the paper counted the "
            "products over slots and write tokens is not known.",
        ),
        PaperRow(
            "concatenate",
            replace(UNIT, write="concatenate"),
            remark=f"{NOT_DETERMINED} a history of the newest 96 output tokens, which is read like "
            "the memory.",
        ),
        PaperRow(
            "no memory",
            replace(UNIT, memory=False),
            remark=f"{NOT_DETERMINED} the same network, whose memory is reset after every step, at "
            "the same cost.",
        ),
    )


# Both counts of the models that `ttm bench flops` shows: by PyTorch's counter, and by hand.

CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the robot in the simulated kitchen. They set the number of tokens a tick in the table of cores."""


@dataclass(frozen=True)
class Measured:
    """One model with both of its counts."""

    row: PaperRow
    counted: CountedStep
    by_hand: StepOperations | None
    """None for a core that has no count by hand."""

    @property
    def matrix_gflops(self) -> float | None:
        """Matrix products alone, counted by hand."""
        return None if self.by_hand is None else self.by_hand.whole.matrix / 1e9

    @property
    def gflops(self) -> float | None:
        """All operations, counted by hand, with element-wise work at half."""
        return None if self.by_hand is None else self.by_hand.whole.total / 1e9

    def to_paper(self, gflops: float | None) -> float | None:
        """Return the ratio of `gflops` to the paper's figure; None if either is unknown."""
        paper = self.row.paper_gflops
        return None if paper is None or gflops is None else gflops / paper


def measure(row: PaperRow, width: int = WIDTH) -> Measured:
    """Count a row in both ways."""
    return Measured(
        row,
        counted_step(row.config, width, row.num_inputs),
        step_by_hand(row.config, width, row.num_inputs),
    )


def measure_tables() -> list[tuple[str, list[Measured]]]:
    """Return title and rows of each table of the paper."""
    return [(table.title, [measure(row) for row in table.rows]) for table in paper_tables()]


def measure_cores(preset: PresetName) -> list[Measured]:
    """Count every core of this project at the sizes of one preset."""
    config = PRESETS[preset]
    # Besides cameras and proprioception, the previous action and the instruction are one token each.
    tokens = config.tokens_per_camera * CAMERAS + PROPRIOCEPTION + 2
    return [
        measure(PaperRow(kind, sized_like(kind, config.core), tokens), config.width)
        for kind in registry.CORES
    ]


def hourglass_sizes(preset: PresetName) -> HourglassConfig:
    """Return the configuration of the preset's Hourglass."""
    config = sized_like("hourglass", PRESETS[preset].core)
    assert isinstance(config, HourglassConfig)
    return config


# The tables of counted operations that `ttm bench flops` prints, and their figures as plain data.

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


def run_bench(preset: PresetName, json_path: Path | None) -> None:
    """Print the paper's tables, all cores at the sizes of `preset`, and the hierarchies of Hourglass.

    json_path: where to write the figures, None for nowhere.
    """
    report = Report(json_path, convention=CONVENTION, tables=[])
    report.text(CONVENTION)
    for title, rows in measure_tables():
        report.table(paper_table(title, rows), explanations(rows))
        report.figures["tables"].append(
            {"title": title, "rows": [to_dict(measured, WIDTH) for measured in rows]}
        )
    report.text(LAYER_NORMS)
    cores = measure_cores(preset)
    report.table(core_table(cores, preset), core_notes(preset))
    width = PRESETS[preset].width
    report.figures["cores"] = {
        "preset": preset,
        "rows": [to_dict(measured, width) for measured in cores],
    }
    sizes = hourglass_sizes(preset)
    hierarchies = measure_hierarchies(sizes, width)
    report.table(hierarchy_table(hierarchies), hierarchy_notes(sizes, width))
    report.figures["hierarchies"] = [asdict(row) for row in hierarchies]
    report.write()
