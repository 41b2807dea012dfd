"""The tables that `ttm bench step` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.table import Table

from ttm.training.bench.report import rows_table
from ttm.training.bench.step.measure import StepRow
from ttm.training.bench.step.parts import Part, Pass, Seconds
from ttm.training.common.tables import compact_table

BAR = 1.5
"""The largest ratio of the processor time of a step to that of an LSTM with as many weights."""

PART_NAMES: Mapping[Part, str] = MappingProxyType(
    {
        "batch": "batch: gathering",
        "vision": "vision",
        "cameras": "camera tokens",
        "inputs": "other tokens, sight",
        "core": "core",
        "head": "head and losses",
        "recall": "recall loss",
        "weights": "optimiser, average",
    }
)

NOTES = f"""\
  weights     of the core and of its sight memory; an LSTM "of as many weights" has as many within 2 %.
  products    millions of multiply-adds of the core in the matrix products of one tick. If nothing else
              took time, the ratio of the cores' times would be the ratio beside it.
  processor   seconds of all threads together; wall: seconds on the clock.
  ratio       to the LSTM of as many weights, on the same batches; bar: {BAR} or less.
  backward    includes the losses themselves.
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
            "products": lambda row: f"{row.multiply_adds / 1e6:.1f} M",
            "ratio": lambda row: f"{row.multiply_adds_ratio:.2f}",
            "processor": lambda row: f"{row.step.processor:.3f} s",
            "ratio ": lambda row: f"{row.processor_ratio:.2f}",
            "wall": lambda row: f"{row.step.wall:.3f} s",
            "ratio  ": lambda row: f"{row.wall_ratio:.2f}",
            "to": lambda row: letters[row.lstm],
        },
        rows,
    )


def part_table(rows: Sequence[StepRow], letters: Mapping[str, str]) -> Table:
    """Return the table of the parts of a step, with a column for each core."""
    columns = [letters[row.core] for row in rows]
    title = "Its parts: processor time forward + backward, in milliseconds"
    table = compact_table(title, ("part", *columns))
    for part, name in PART_NAMES.items():
        if any(part in row.parts for row in rows):
            table.add_row(name, *(_both_ways(row.parts.get(part, {})) for row in rows))
    return table


def _both_ways(taken: Mapping[Pass, Seconds]) -> str:
    return " + ".join(f"{seconds.processor * 1e3:.0f}" for seconds in taken.values())
