"""The tables that `ttm bench step` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.table import Table

from ttm.training.bench.report import rows_table
from ttm.training.bench.step.measure import StepRow
from ttm.training.bench.step.parts import Part, Seconds
from ttm.training.common.tables import compact_table

BAR = 1.5
"""The largest ratio of the processor time of a step to that of an LSTM with as many weights."""

PART_NAMES: Mapping[Part, str] = MappingProxyType(
    {
        "batch": "batch: gathering",
        "cameras": "camera tokens",
        "inputs": "other tokens",
        "core": "core",
        "head": "head and losses",
        "recall": "recall loss",
        "weights": "optimiser, average",
    }
)

NOTES = f"""\
  weights     of the core; an LSTM "of as many weights" has as many within 2 %.
  processor   seconds of all threads together; wall: seconds on the clock.
  ratio       to the LSTM of as many weights, on the same batches; bar: {BAR} or less.
  fwd, bwd    milliseconds of the processor forward and backward; losses count backward.
All are medians over the steps, so that the parts need not add up.
"""


def step_table(rows: Sequence[StepRow], letters: Mapping[str, str]) -> Table:
    """Return the table of whole steps. letters: core -> the letter that stands for it."""
    threads = rows[0].threads
    return rows_table(
        f"A training step on {threads} CPU thread{'s' * (threads > 1)}",
        {
            "core": lambda row: f"{letters[row.core]}",
            "weights": lambda row: f"{row.parameters:,}",
            "processor": lambda row: f"{row.step.processor:.3f} s",
            "ratio": lambda row: f"{row.processor_ratio:.2f}",
            "wall": lambda row: f"{row.step.wall:.3f} s",
            "wall ratio": lambda row: f"{row.wall_ratio:.2f}",
            "ratio to": lambda row: letters[row.lstm],
        },
        rows,
    )


def part_table(rows: Sequence[StepRow], letters: Mapping[str, str]) -> Table:
    """Return the table of the parts of a step, with two columns for each core."""
    columns = [f"{letters[row.core]} {way}" for row in rows for way in ("fwd", "bwd")]
    table = compact_table("Its parts, in milliseconds of the processor", ("part", *columns))
    for part, name in PART_NAMES.items():
        cells = []
        for row in rows:
            taken = row.parts.get(part, {})
            cells += [_milliseconds(taken.get("forward")), _milliseconds(taken.get("backward"))]
        table.add_row(name, *cells)
    return table


def _milliseconds(taken: Seconds | None) -> str:
    return "" if taken is None else f"{taken.processor * 1e3:.1f}"
