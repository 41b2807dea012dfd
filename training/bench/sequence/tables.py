"""The tables that `ttm bench sequence` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from rich.table import Table

from ttm.training.bench.report import decimals, rows_table
from ttm.training.bench.sequence.cost import CostRow, CostSizes
from ttm.training.bench.sequence.models import Choices
from ttm.training.bench.sequence.quality import QualityRow, Training

COST_NOTES = """\
Figures of the plain Transformer: {plain}.

  time     median of a forward and a backward pass, timed in turns with the other models.
  memory   what the forward pass keeps for the backward pass, counted; attention recomputes its scores
           there, and keeps a mask of queries by keys.
  scores   the same if attention keeps its scores, as it did when the papers were written.
  tick     a control tick at batch 1 after {ticks} ticks, with PyTorch. The plain Transformer rotates and
           copies all keys so far. TLB computes new latents, and Hourglass every coarse element, at each
           tick: their cost is constant.
  state    floats carried from tick to tick; that of the plain Transformer grows with every tick.
  linear   Hourglass's linear cost model: layers at full length. It leaves out attention itself.

All models have the same heads, MLPs and tokens; their layers are in the table. TLB has {layers} layers of
self-attention and, after every {cross_every}, one of cross-attention to {num_latents} latents. For
Hourglass the layers of all scales are added; its attention sees {window} elements of its scale,
resamples, and has rotary positions like the plain Transformer's.
"""

QUALITY_NOTES = """\
Figures of the plain Transformer: {plain}.

Prediction of the next byte of the text of Python's help: {steps} steps of {batch} x {ticks} bytes, the same
for all models. bits: for each byte of the last tenth of the text, which is held out, in windows of
{ticks} bytes that begin with an empty memory; the frequencies of single bytes give {single:.2f}. This is
far smaller than the papers' experiments (Hourglass: enwik8, 100 MB), and cannot be compared with them.
It ranks the models on a text after a short training.
"""

Columns = Mapping[str, Callable[[CostRow], str]]


def cost_table(rows: Sequence[CostRow], sizes: CostSizes) -> Table:
    """Return the ratios to the first row, the plain Transformer; its own figures are in the notes."""
    plain = rows[0]
    columns = {
        **_model_columns(),
        **_pass_columns(plain),
        "tick": _ratio("tick_ms", plain),
        "state": _ratio("state_floats", plain, digits=3),
        "linear": _ratio("linear_cost", plain),
    }
    return rows_table(
        f"{sizes.ticks} ticks, batch {sizes.batch}, width {sizes.width}, one token a tick: "
        "ratios to the plain Transformer",
        columns if plain.peak_mb is None else {**columns, "peak": _ratio("peak_mb", plain)},
        rows,
    )


def quality_table(rows: Sequence[QualityRow], training: Training) -> Table:
    """Return bits beside the cost of a training pass, as ratios to the first row."""
    plain = rows[0].cost
    costs = {**_pass_columns(plain), "linear": _ratio("linear_cost", plain)}
    return rows_table(
        f"Quality after {training.steps} steps, and the cost of a step's passes as ratios",
        {
            **{heading: _of_cost(cell) for heading, cell in _model_columns().items()},
            **{f"bits,\nseed {seed}": _bits(number) for number, seed in enumerate(training.seeds)},
            **{heading: _of_cost(cell) for heading, cell in costs.items()},
        },
        rows,
    )


def cost_notes(plain: CostRow, choices: Choices, sizes: CostSizes) -> str:
    """Return an explanation of the columns, and of what the models have in common."""
    return COST_NOTES.format(plain=_in_words(plain), ticks=sizes.ticks, **vars(choices))


def quality_notes(plain: CostRow, sizes: CostSizes, training: Training, single: float) -> str:
    """Return an explanation of the training, and of the baseline of its bits."""
    return QUALITY_NOTES.format(
        plain=_in_words(plain),
        steps=training.steps,
        batch=sizes.batch,
        ticks=sizes.ticks,
        single=single,
    )


def _model_columns() -> Columns:
    """Return the columns that describe a model, in both tables."""
    return {
        "model": lambda row: row.name,
        "layers": lambda row: row.layers,
        "params\n(k)": lambda row: f"{row.parameters / 1e3:,.0f}",
    }


def _pass_columns(plain: CostRow) -> Columns:
    """Return the columns on a training pass, in both tables."""
    return {
        "time": _ratio("train_ms", plain),
        "memory": _ratio("kept_mb", plain),
        "scores": _ratio("kept_with_scores_mb", plain),
    }


def _ratio(field: str, plain: CostRow, digits: int = 2) -> Callable[[CostRow], str]:
    """Return the text of the ratio of `field` to that of `plain`; a dash where one is unknown."""
    get = attrgetter(field)

    def cell(row: CostRow) -> str:
        value, reference = get(row), get(plain)
        unknown = value is None or reference is None
        return decimals(None if unknown else value / reference, digits)

    return cell


def _of_cost(cell: Callable[[CostRow], str]) -> Callable[[QualityRow], str]:
    return lambda row: cell(row.cost)


def _bits(number: int) -> Callable[[QualityRow], str]:
    return lambda row: f"{row.bits[number]:.3f}"


def _in_words(plain: CostRow) -> str:
    """Return the absolute figures to which the ratios refer."""
    passes = (
        f"{plain.train_ms:.0f} ms, {plain.kept_mb:.1f} MB, "
        f"{plain.kept_with_scores_mb:.1f} MB with scores"
    )
    tick = "" if plain.tick_ms is None else f", a tick {plain.tick_ms:.2f} ms"
    peak = "" if plain.peak_mb is None else f", peak {plain.peak_mb:.1f} MB"
    return f"{passes}{tick}{peak}, state {plain.state_floats:,} floats"
