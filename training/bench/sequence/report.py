"""The tables that `ttm bench sequence` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ttm.training.bench.sequence.cost import CostRow, CostSizes
from ttm.training.bench.sequence.models import Choices
from ttm.training.bench.sequence.quality import QualityRow, Training
from ttm.training.common.tables import compact_table

COST_NOTES = """\
The plain Transformer's own: {plain}.

  time     median of a forward and a backward pass, by turns with the other models.
  memory   what the forward pass keeps for the backward pass, counted; attention works its scores out again there,
           and keeps a mask of queries by keys.
  scores   the same where attention keeps its scores, as it did when the papers were written.
  tick     a control tick at batch 1 after {ticks} ticks, by PyTorch. The plain Transformer's turns and copies all
           keys so far. TLB works out new latents, and Hourglass every coarse element, at each tick: it is constant.
  state    floats carried from tick to tick; those of the plain Transformer grow with every tick.
  linear   Hourglass's linear cost model: layers at full length. It leaves out what attention itself takes.

All have heads, MLPs and tokens in common; their layers are in the table. TLB has {layers} of self-attention and,
after every {cross_every}, one of cross-attention to {num_latents} latents. Hourglass has those of all its scales;
attention sees {window} elements of its scale, resamples, and has rotary positions as the plain Transformer's.
"""

QUALITY_NOTES = """\
The plain Transformer's own: {plain}.

Prediction of the next byte of the text of Python's help: {steps} steps of {batch} x {ticks} bytes, the same for all.
Bits for each byte of its last tenth, which is held out, in windows of {ticks} bytes that begin with an empty
memory; the frequencies of single bytes give {single:.2f}. Scaled down by far: the papers' figures (Hourglass's are of
enwik8, 100 MB) cannot be compared with these, which show how the models rank on a text after a short training.
"""


def cost_table(rows: Sequence[CostRow], sizes: CostSizes) -> Table:
    """Ratios to the first row, the plain Transformer; its own figures are in the notes below."""
    plain = rows[0]
    title = (
        f"{sizes.ticks} ticks, batch {sizes.batch}, width {sizes.width}, one token a tick: "
        f"ratios to the plain Transformer"
    )
    columns = [
        "model",
        "layers",
        "parameters",
        "time",
        "memory",
        "scores",
        "tick",
        "state",
        "linear",
    ]
    table = compact_table(title, [*columns, "peak"] if plain.peak_mb is not None else columns)
    for row in rows:
        table.add_row(
            row.name,
            row.layers,
            f"{row.parameters:,}",
            _ratio(row.train_ms, plain.train_ms),
            _ratio(row.kept_mb, plain.kept_mb),
            _ratio(row.kept_with_scores_mb, plain.kept_with_scores_mb),
            _ratio(row.tick_ms, plain.tick_ms),
            _ratio(row.state_floats, plain.state_floats, digits=3),
            _ratio(row.linear_cost, plain.linear_cost),
            *([_ratio(row.peak_mb, plain.peak_mb)] if plain.peak_mb is not None else []),
        )
    return table


def quality_table(rows: Sequence[QualityRow], training: Training) -> Table:
    """Bits beside what a training pass takes, which again is a ratio to the first row."""
    plain = rows[0].cost
    title = f"Quality after {training.steps} steps, and the cost of a step's passes as ratios"
    seeds = [f"bits, seed {seed}" for seed in training.seeds]
    table = compact_table(
        title, ("model", "layers", "parameters", *seeds, "time", "memory", "scores", "linear")
    )
    for row in rows:
        cost = row.cost
        table.add_row(
            cost.name,
            cost.layers,
            f"{cost.parameters:,}",
            *(f"{bits:.3f}" for bits in row.bits),
            _ratio(cost.train_ms, plain.train_ms),
            _ratio(cost.kept_mb, plain.kept_mb),
            _ratio(cost.kept_with_scores_mb, plain.kept_with_scores_mb),
            _ratio(cost.linear_cost, plain.linear_cost),
        )
    return table


def cost_notes(plain: CostRow, choices: Choices, sizes: CostSizes) -> str:
    """What the columns are, and what was held equal."""
    return COST_NOTES.format(plain=_in_words(plain), ticks=sizes.ticks, **vars(choices))


def quality_notes(plain: CostRow, sizes: CostSizes, training: Training, single: float) -> str:
    """What was trained on what, and what that is worth."""
    return QUALITY_NOTES.format(
        plain=_in_words(plain),
        steps=training.steps,
        batch=sizes.batch,
        ticks=sizes.ticks,
        single=single,
    )


def _in_words(plain: CostRow) -> str:
    """What the ratios are to."""
    passes = f"{plain.train_ms:.0f} ms, {plain.kept_mb:.1f} MB, {plain.kept_with_scores_mb:.1f} MB with scores"
    tick = "" if plain.tick_ms is None else f", a tick {plain.tick_ms:.2f} ms"
    peak = "" if plain.peak_mb is None else f", peak {plain.peak_mb:.1f} MB"
    return f"{passes}{tick}{peak}, state {plain.state_floats:,} floats"


def _ratio(value: float | None, plain: float | None, digits: int = 2) -> str:
    return "—" if value is None or plain is None else f"{value / plain:.{digits}f}"
