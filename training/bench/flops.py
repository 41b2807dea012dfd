"""`ttm bench flops`: the operations of a step of every temporal core, beside the figures of a paper.

`torch.utils.flop_counter` counts matrix products; formulas for element-wise operators come from
`ttm.training.bench.common`. Our module scales queries and keys, where XLA counts queries alone: at most
0.03 % of a step.

Tables 2 to 5 of the Token Turing Machines paper (Ryoo et al. 2022), and all cores of this project.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ttm.policy.cores import registry
from ttm.policy.cores.core import CoreConfig
from ttm.policy.cores.registry import sized_like
from ttm.policy.cores.ttm import TokenTuringConfig
from ttm.policy.policy import PRESETS
from ttm.training.bench.common import (
    BenchCommand,
    Cell,
    Figures,
    Report,
    counted_step,
    decimals,
    rows_table,
)

WIDTH = 768
"""The width of ViViT-B. The paper's "hidden size of 512" is that of the MLPs."""
FEW, MANY = 16, 3136
"""Input tokens a step in the paper's two settings."""
UNIT = TokenTuringConfig(
    memory_size=96, process_size=16, num_layers=4, num_heads=12, mlp_size=512, bottleneck=64,
    token_mixing_size=128, positional_embedding=False,
)  # fmt: skip
"""TTM-Transformer with the sizes that reproduce the paper's costs."""
MIXER = replace(UNIT, processor="mixer")
TINY = PRESETS["tiny"]
CAMERAS, PROPRIOCEPTION = 2, 3
"""Of the robot in the simulated kitchen. They set the number of tokens a tick in the table of cores."""

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
                "causal Transformer", sized_like("transformer", UNIT), FEW, remark="8 cached ticks"
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


@dataclass(frozen=True)
class BenchFlopsCommand(BenchCommand):
    """Count the operations of a step of every temporal core, beside tables 2 to 5 of the TTM paper.

    Takes seconds; nothing is timed.
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
