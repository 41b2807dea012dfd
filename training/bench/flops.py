"""`ttm bench flops`: the operations of a step of every temporal core, beside the figures of two papers.

`torch.utils.flop_counter` counts matrix products; formulas for element-wise operators come from
`ttm.training.bench.common`. Our module scales queries and keys, where XLA counts queries alone: at most
0.03 % of a step.

Tables 2 to 5 of the Token Turing Machines paper (Ryoo et al. 2022), all cores of this project, and the
hierarchies of the Hourglass paper (Nawrot et al. 2021) with its linear cost model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.hourglass import HourglassConfig, parse_hierarchy
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.policy import PRESETS
from ttm.training.bench.common import (
    BenchCommand,
    Cell,
    Figures,
    Report,
    aten,
    counted_flops,
    counted_step,
    decimals,
    rows_table,
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
TINY = PRESETS["tiny"]
CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the robot in the simulated kitchen. They set the number of tokens a tick in the table of cores."""

HIERARCHIES = (
    *("2@1 4@4 2@1", "2@1 8@4 2@1", "3@1 8@4 3@1", "4@1 8@4 4@1", "2@1 1@3 2@1", "2@1 4@3 2@1"),
    *("2@1 8@3 2@1", "2@1 16@3 2@1", "2@1 1@2 4@4 1@2 2@1", "5@1 8@2 5@1", "5@1 24@3 5@1"),
    "3@1 24@3 3@1",
)
"""The hierarchies of the Hourglass paper."""

CONVENTION = """\
Operations of one step at batch 1, without the image encoder. A multiply-add counts as one.

  matrix    torch.utils.flop_counter on a step of the module, halved: it takes two for a multiply-add. It
            sees matrix products alone; attention runs as such.
  all       the same, plus half of the element-wise operations: one for each addition, multiplication or
            division of one value; none for exp, tanh, sigmoid and roots. A layer norm takes 7 a value,
            gelu 8, softmax 4. XLA counts in this way, with two for a multiply-add; Scenic, the authors'
            framework, halves the count of XLA.
  paper     Ryoo et al. 2022, tables 2 to 5; — where a figure, or the setting behind it, is not determined
            here; the notes below a table say what such a row was counted for.

The paper's setting: width 768 (that of ViViT-B; the "hidden size of 512" is that of the MLPs), MLP 512,
4 layers, 12 heads, bottleneck 64, token-mixing MLP 128, m = 96, r = 16, no outer positional embedding.
"""
LAYER_NORMS = """\
Our figures are above the paper's by at most 0.8 %. With 6 operations a value of a layer norm in place of
7, those of the Token Turing Machines in tables 2 and 3 are equal to the printed ones to the last digit.
"""
HIERARCHY_NOTES = f"""\
  model     the paper's: a layer at scale k costs 1 / k, and each change of scale costs one layer of its
            finer side.
  element   of our core, for one element of a long sequence, as in training, where coarse elements are
            computed once in k ticks. Shortening and upsampling cost one layer at each of both scales,
            where the model has two at the fine one; a linear map adds k products of D x D.
  tick      of a control tick, which computes every scale: a robot needs a constant time.
All in layers at full length, by their products with weights (attention itself runs under a mask in
training, over more elements than it sees): D = {TINY.width}, MLP {{mlp_size}}, rotary positions.
"""


@dataclass(frozen=True)
class Model:
    """One model with `num_inputs` input tokens a step."""

    name: str
    config: CoreConfig
    num_inputs: int = MANY
    paper_gflops: float | None = None
    """None where a figure of the paper, or the setting behind it, is not determined."""
    remark: str = ""
    """Printed below the table: what is different about the row, or what it was counted for."""


def paper_tables() -> dict[str, list[Model]]:
    """Return title -> rows of tables 2 to 5."""
    recurrent = sized_like("recurrent-transformer", replace(UNIT, memory_size=16))
    one_encoder = "one encoder of 16 state and 16 input tokens; ours reads the inputs first (0.001)"
    mha = replace(UNIT, summarizer="mha")
    erase_add = replace(UNIT, write="erase_add", initial_memory="learned")
    over_slots = "how the paper counted the products over slots and write tokens is not known"
    history = "a history of the newest 96 output tokens, which is read like the memory"
    return {
        "Table 2: against other sequence models": [
            Model("TTM-Transformer", UNIT, FEW, 0.228),
            Model("TTM-Mixer", MIXER, FEW, 0.089),
            Model("TTM-Transformer", UNIT, MANY, 0.842),
            Model("TTM-Mixer", MIXER, MANY, 0.704),
            Model("recurrent Transformer", recurrent, FEW, 0.410, one_encoder),
            Model(
                "causal Transformer", sized_like("transformer", UNIT), FEW, None, "8 cached ticks"
            ),
            Model("temporal Mixer", sized_like("mixer", UNIT), FEW, None, "6 ticks"),
            Model("LSTM", sized_like("lstm", UNIT), FEW, None, "width 768, for each of 16 tokens"),
            Model("frame stacking", sized_like("frame-stacking", UNIT), FEW, None, "6 ticks"),
        ],
        "Table 3: processing units": [
            Model("Transformer", UNIT, MANY, 0.842),
            Model("MLP-Mixer", MIXER, MANY, 0.704),
            Model("MLP", replace(UNIT, processor="mlp"), MANY, 0.689),
        ],
        "Table 4: token summarisation, in read and write": [
            Model("MLP", UNIT, MANY, 0.842),
            Model("queries, 8 heads", mha, MANY, 8.537, "agrees with the matrix products alone"),
            Model("queries, eq. 2", replace(UNIT, summarizer="query")),
            Model("pooling", replace(UNIT, summarizer="pooling")),
        ],
        "Table 5: memory writes": [
            Model("summarise", UNIT, MANY, 0.842),
            Model("erase and add", erase_add, MANY, 0.423, over_slots),
            Model("concatenate", replace(UNIT, write="concatenate"), remark=history),
            Model("no memory", replace(UNIT, memory=False), remark="reset after every step"),
        ],
    }


def measure(model: Model, width: int = WIDTH) -> Figures:
    """Count a model in operations."""
    counted, paper = counted_step(model.config, width, model.num_inputs), model.paper_gflops
    return {
        **asdict(model),
        **asdict(counted),
        "width": width,
        "matrix_to_paper": paper and counted.multiply_adds / 1e9 / paper,
        "all_to_paper": paper and counted.operations / 1e9 / paper,
    }


def measure_hierarchies(sizes: HourglassConfig, width: int) -> list[Figures]:
    """Count the paper's hierarchies in layers at full length: by its model, by element and by tick."""

    def layers(hierarchy: str, ticks: int) -> float:
        return products_with_weights(sizes, width, hierarchy, ticks) / layer

    layer = products_with_weights(sizes, width, "1@1", ticks=1)
    return [
        {
            "hierarchy": text,
            "model": float(parse_hierarchy(text).linear_cost),
            "element": layers(text, parse_hierarchy(text).period),
            "tick": layers(text, 1),
        }
        for text in HIERARCHIES
    ]


@torch.no_grad()
def products_with_weights(sizes: HourglassConfig, width: int, hierarchy: str, ticks: int) -> float:
    """Return the operations of these products for each of `ticks` ticks, without the read of the inputs.

    As in the cost model, an element has one token, and attention resamples.
    """
    resampled = replace(sizes, pooling="attention", upsampling="attention", position="rotary")
    config = replace(resampled, hierarchy=hierarchy, process_size=1)
    core, tokens = config.build(width, 1), torch.zeros(1, ticks, 1, width)
    whole, read = (counted_flops(partial(f, tokens)) for f in (core, core.read_all))
    return sum(whole.get(op, 0) - read.get(op, 0) for op in (aten.mm, aten.addmm)) / ticks


@dataclass(frozen=True)
class BenchFlopsCommand(BenchCommand):
    """Count the operations of a step of every temporal core, beside tables 2 to 5 of the TTM paper.

    Also compares the linear cost model of the Hourglass paper with the operations of our core, for the
    paper's hierarchies. Takes seconds; nothing is timed.
    """

    def measure(self, report: Report) -> None:
        """Count, and print the tables."""
        report.text(CONVENTION)
        report.figures["tables"] = []
        for title, models in paper_tables().items():
            rows = [measure(model) for model in models]
            table = rows_table(f"{title} (GFLOPs a step)", PAPER_COLUMNS, rows)
            remarks = [REMARK.format(**row) for row in rows if row["remark"]]
            report.table(table, "".join(remarks))
            report.figures["tables"].append({"title": title, "rows": rows})
        report.text(LAYER_NORMS)
        # Besides cameras and proprioception, the previous action and the instruction are one token each.
        tokens = TINY.tokens_per_camera * CAMERAS + PROPRIOCEPTION + 2
        rows = [
            measure(Model(kind, sized_like(kind, TINY.core), tokens), TINY.width)
            for kind in registry.CORES
        ]
        title = (
            "Every core at the sizes of the tiny preset (MFLOPs a tick)\n"
            f"width {TINY.width}, {tokens} tokens a tick: {CAMERAS} cameras, {PROPRIOCEPTION} "
            "vectors of proprioception, action, instruction"
        )
        report.rows("cores", title, CORE_COLUMNS, rows)
        sizes = sized_like("hourglass", TINY.core)
        assert isinstance(sizes, HourglassConfig)
        title = "Hourglass: the paper's linear cost model, and products with weights counted"
        rows = measure_hierarchies(sizes, TINY.width)
        notes = HIERARCHY_NOTES.format(mlp_size=sizes.mlp_size)
        report.rows("hierarchies", title, HIERARCHY_COLUMNS, rows, notes)


REMARK = "  {name}, n = {num_inputs}: {remark}.\n"
PAPER_COLUMNS: dict[str, Cell] = {
    "model": "{name}",
    "n": "{num_inputs}",
    "matrix": lambda row: decimals(row["multiply_adds"] / 1e9, 3),
    "all": lambda row: decimals(row["operations"] / 1e9, 3),
    "paper": lambda row: decimals(row["paper_gflops"], 3),
    "matrix\n/ paper": lambda row: decimals(row["matrix_to_paper"], 3),
    "all\n/ paper": lambda row: decimals(row["all_to_paper"], 3),
}
CORE_COLUMNS: dict[str, Cell] = {
    "core": "{name}",
    "matrix": lambda row: decimals(row["multiply_adds"] / 1e6, 2),
    "all": lambda row: decimals(row["operations"] / 1e6, 2),
    "parameters": "{parameters:,}",
    "state\n(floats)": "{state_values:,}",
}
HIERARCHY_COLUMNS: dict[str, Cell] = {
    "hierarchy": "{hierarchy}",
    "model": "{model:.2f}",
    "element": "{element:.2f}",
    "element\n/ model": lambda row: f"{row['element'] / row['model']:.2f}",
    "tick": "{tick:.2f}",
    "tick\n/ model": lambda row: f"{row['tick'] / row['model']:.2f}",
}
