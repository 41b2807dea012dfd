"""`ttm bench flops`: the operations of a step of every temporal core, beside the figures of two papers.

The rows of tables 2 to 5 of the Token Turing Machines paper (Ryoo et al. 2022) are here as
configurations, with their columns of cost alone; accuracies depend on data that the project does not
have. Then come all cores of this project, and the hierarchies of the Hourglass paper (Nawrot et al.
2021) with its linear cost model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ttm.policy.config import PresetName
from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.policy import PRESETS
from ttm.training.bench.common import Cell, Figures, Report, counted_step, decimals, rows_table
from ttm.training.bench.flops_counts import (
    element_by_hand,
    hourglass,
    hourglass_layer,
    step_by_hand,
)

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
CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the robot in the simulated kitchen. They set the number of tokens a tick in the table of cores."""

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
"""The hierarchies of the Hourglass paper."""

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
HIERARCHY_NOTES = """\
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
class Model:
    """One model with `num_inputs` input tokens a step."""

    name: str
    config: CoreConfig
    num_inputs: int = MANY
    paper_gflops: float | None = None
    """None where a figure of the paper, or the setting behind it, is not known for certain."""
    remark: str = ""
    """Printed below the table: what is different about the row, or what it was counted for."""


def paper_tables() -> dict[str, list[Model]]:
    """Return title -> rows of tables 2 to 5."""
    recurrent = sized_like("recurrent-transformer", replace(UNIT, memory_size=16))
    erase_add = replace(UNIT, write="erase_add", initial_memory="learned")
    state_and_inputs = (
        "16 state tokens and 16 input tokens pass through one encoder; ours first reads the inputs "
        "(0.001)."
    )
    products_over_slots = (
        "Our mean of 1 - W A is one matrix product (0.0006); how the paper counted the products over "
        "slots and write tokens is not known."
    )
    same_sizes = not_determined("the sizes of the other rows")
    history = "a history of the newest 96 output tokens, which is read like the memory"
    no_memory = "the same network, whose memory is reset after every step, at the same cost"
    others = {
        "causal Transformer": ("transformer", "4 layers and a window of 8 ticks, cached"),
        "temporal Mixer": ("mixer", "4 layers over 6 ticks"),
        "LSTM": ("lstm", "4 layers of width 768, run for each of 16 tokens"),
        "frame stacking": ("frame-stacking", "4 layers over the tokens of 6 ticks"),
    }
    return {
        "Table 2: against other sequence models": [
            Model("TTM-Transformer", UNIT, FEW, 0.228),
            Model("TTM-Mixer", MIXER, FEW, 0.089),
            Model("TTM-Transformer", UNIT, MANY, 0.842),
            Model("TTM-Mixer", MIXER, MANY, 0.704),
            Model("recurrent Transformer", recurrent, FEW, 0.410, remark=state_and_inputs),
            *(
                Model(name, sized_like(kind, UNIT), FEW, remark=not_determined(sizes))
                for name, (kind, sizes) in others.items()
            ),
        ],
        "Table 3: processing units": [
            Model("Transformer", UNIT, MANY, 0.842),
            Model("MLP-Mixer", MIXER, MANY, 0.704),
            Model("MLP", replace(UNIT, processor="mlp"), MANY, 0.689),
        ],
        "Table 4: token summarisation, in read and write": [
            Model("MLP", UNIT, MANY, 0.842),
            Model(
                "queries, 8 heads",
                replace(UNIT, summarizer="mha"),
                paper_gflops=8.537,
                remark="The paper's figure agrees with the matrix products alone.",
            ),
            Model("queries, eq. 2", replace(UNIT, summarizer="query"), remark=same_sizes),
            Model("pooling", replace(UNIT, summarizer="pooling"), remark=same_sizes),
        ],
        "Table 5: memory writes": [
            Model("summarise", UNIT, MANY, 0.842),
            Model("erase and add", erase_add, MANY, 0.423, remark=products_over_slots),
            Model(
                "concatenate", replace(UNIT, write="concatenate"), remark=not_determined(history)
            ),
            Model("no memory", replace(UNIT, memory=False), remark=not_determined(no_memory)),
        ],
    }


def not_determined(sizes: str) -> str:
    """Return the remark on a row whose figure is not compared."""
    return f"The paper's figure or setting is not determined here; counted for {sizes}."


def measure(model: Model, width: int = WIDTH) -> Figures:
    """Count a model in both ways, by PyTorch's counter and by hand, in operations."""
    counted = counted_step(model.config, width, model.num_inputs)
    by_hand = step_by_hand(model.config, width, model.num_inputs)
    matrix, total, paper = None, None, model.paper_gflops
    if by_hand is not None:
        matrix, total = by_hand.whole.matrix, by_hand.whole.total
    return {
        "name": model.name,
        "core": asdict(model.config),
        "width": width,
        "num_inputs": model.num_inputs,
        "counter_multiply_adds": counted.multiply_adds,
        "by_hand": by_hand and asdict(by_hand),
        "matrix_multiply_adds": matrix,
        "elementwise_operations": by_hand and by_hand.whole.elementwise,
        "total": total,
        "paper_gflops": paper,
        "matrix_to_paper": matrix / 1e9 / paper if matrix and paper else None,
        "total_to_paper": total / 1e9 / paper if total and paper else None,
        "state_floats": counted.state_values,
        "parameters": counted.parameters,
        "remark": model.remark,
    }


def explanation(row: Figures) -> str:
    """Return one line on the distance of both counts from the paper's figure."""
    name = f"{row['name']}, n = {row['num_inputs']}:"
    if row["total_to_paper"] is None:
        return f"{name} {row['remark']}"
    kinds = {
        "layer norms": "norms",
        "gelu and gates": "activations",
        "softmax": "softmaxes",
        "additions": "additions",
    }
    parts = row["by_hand"].values()
    elements = ", ".join(
        f"{kind} {sum(part[field] for part in parts) / 2e9:.4f}" for kind, field in kinds.items()
    )
    matrix, everything = (
        f"{(row[ratio] - 1) * 100:+.1f} %".replace("-0.0", "+0.0")
        for ratio in ("matrix_to_paper", "total_to_paper")
    )
    return f"{name} matrix {matrix}, all {everything}: {elements}. {row['remark']}".rstrip()


def measure_hierarchies(sizes: HourglassConfig, width: int) -> list[Figures]:
    """Count the paper's hierarchies in layers at full length: by its model, by element and by tick."""
    rows = []
    for hierarchy in HIERARCHIES:
        config = replace(as_in_cost_model(sizes), hierarchy=hierarchy)
        layer = hourglass_layer(config, width, config.window).matrix
        rows.append(
            {
                "hierarchy": hierarchy,
                "model": float(parse_hierarchy(hierarchy).linear_cost),
                "element": float(element_by_hand(config, width) / layer),
                "tick": hourglass(config, width, num_inputs=1).process.matrix / layer,
            }
        )
    return rows


def as_in_cost_model(sizes: HourglassConfig) -> HourglassConfig:
    """Return the sizes with what the cost model assumes: one token an element, resampling by attention."""
    return replace(
        sizes, process_size=1, pooling="attention", upsampling="attention", position="rotary"
    )


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
        """Count, print the tables, and write the figures."""
        report = Report(self.json, convention=CONVENTION, tables=[])
        report.text(CONVENTION)
        for title, models in paper_tables().items():
            rows = [measure(model) for model in models]
            print_paper_table(report, title, rows)
            report.figures["tables"].append({"title": title, "rows": rows})
        report.text(LAYER_NORMS)
        sizes = sized_like("hourglass", PRESETS[self.preset].core)
        assert isinstance(sizes, HourglassConfig)
        self._report_cores(report, sizes)
        self._report_hierarchies(report, sizes)
        report.write()
        return 0

    def _report_cores(self, report: Report, hourglass: HourglassConfig) -> None:
        config = PRESETS[self.preset]
        # Besides cameras and proprioception, the previous action and the instruction are one token each.
        tokens = config.tokens_per_camera * CAMERAS + PROPRIOCEPTION + 2
        rows = [
            measure(Model(kind, sized_like(kind, config.core), tokens), config.width)
            for kind in registry.CORES
        ]
        title = (
            f"Every core at the sizes of the {self.preset} preset (MFLOPs a tick)\n"
            f"width {config.width}, {tokens} tokens a tick: {CAMERAS} cameras, {PROPRIOCEPTION} "
            "vectors of proprioception, action, instruction"
        )
        columns: dict[str, Cell] = {
            "core": "{name}",
            "parameters": "{parameters:,}",
            "counter": scaled("counter_multiply_adds", 1e6, 2),
            "by\nhand": scaled("matrix_multiply_adds", 1e6, 2),
            "all": scaled("total", 1e6, 2),
            "state\n(floats)": "{state_floats:,}",
        }
        cost = float(parse_hierarchy(hourglass.hierarchy).linear_cost)
        note = f"with a linear cost of {cost:g} layers; see below.\n"
        report.table(
            rows_table(title, columns, rows), f"  hourglass: {hourglass.hierarchy}, {note}"
        )
        report.figures["cores"] = {"preset": self.preset, "rows": rows}

    def _report_hierarchies(self, report: Report, sizes: HourglassConfig) -> None:
        width = PRESETS[self.preset].width
        title = "Hourglass: the paper's linear cost model, and matrix products counted"
        columns: dict[str, Cell] = {
            "hierarchy": "{hierarchy}",
            "model": "{model:.2f}",
            "element": "{element:.2f}",
            "element\n/ model": lambda row: f"{row['element'] / row['model']:.2f}",
            "tick": "{tick:.2f}",
            "tick\n/ model": lambda row: f"{row['tick'] / row['model']:.2f}",
        }
        used = {"width": width, "window": sizes.window, "mlp_size": sizes.mlp_size}
        layer = hourglass_layer(as_in_cost_model(sizes), width, sizes.window).matrix
        notes = HIERARCHY_NOTES.format(layer=layer, **used)
        report.rows("hierarchies", title, columns, measure_hierarchies(sizes, width), notes)


def print_paper_table(report: Report, title: str, rows: list[Figures]) -> None:
    """Print one of the paper's tables, and one line below it for each row."""
    columns: dict[str, Cell] = {
        "model": "{name}",
        "n": "{num_inputs}",
        "counter": scaled("counter_multiply_adds", 1e9, 3),
        "by\nhand": scaled("matrix_multiply_adds", 1e9, 3),
        "all": scaled("total", 1e9, 3),
        "paper": scaled("paper_gflops", 1, 3),
        "matrix\n/ paper": scaled("matrix_to_paper", 1, 3),
        "all\n/ paper": scaled("total_to_paper", 1, 3),
    }
    notes = "".join(f"  {explanation(row)}\n" for row in rows)
    report.table(rows_table(f"{title} (GFLOPs a step)", columns, rows), notes)


def scaled(field: str, unit: float, digits: int) -> Cell:
    """Return the text of a count in millions or billions, or a dash."""
    return lambda row: decimals(None if row[field] is None else row[field] / unit, digits)
