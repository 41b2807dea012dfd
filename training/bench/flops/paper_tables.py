"""The rows of tables 2 to 5 of the Token Turing Machines paper (Ryoo et al. 2022), as configurations.

Only the columns of cost are here; accuracies depend on data that the project does not have.
`paper_gflops` is None where a figure of the paper, or the setting behind it, is not known for certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ttm.policy.cores.configs import sized_like
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.policy.cores.ttm.machine import TokenTuringConfig

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
