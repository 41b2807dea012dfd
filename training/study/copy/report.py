"""The notes, the table and the figures of `ttm study copy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.cores.configs import core_to_dict
from ttm.policy.cores.temporal_core import CoreConfig
from ttm.training.common.tables import compact_table
from ttm.training.study.copy.options import CopyOptions
from ttm.training.study.copy.task import NUM_DIGITS, lag
from ttm.training.study.copy.training import CopyResult

PAPER_SAMPLES: Mapping[tuple[str, int], str] = MappingProxyType({("tlb", 100): "6,200"})
"""(Core, T) -> unique sequences after which every digit is right in the Temporal Latent Bottleneck
paper."""

NOTES = f"""\
Copying: {NUM_DIGITS} digits from 1 to 8, T zeros, a 9, {NUM_DIGITS} zeros. At the last symbols the
digits are to be repeated. By chance 1 of 8 digits is right (12.5 %), and no sequence.

  size       thousands of weights.
  sees       how many ticks back the last output depends on, by its gradient before training;
             "all": to the first. The task needs T + {lag(0)}. A core that sees less can only guess.
  digits     held-out digits that are right, and
  whole      held-out sequences without an error, when all were right or the time was up.
  samples    sequences presented until then; ">" where not all were right.
  s          seconds with evaluations, at most {{minutes:g}} minutes; CPU threads: {{threads}}.
  paper      unique sequences until all were right (Didolkar et al. 2022); — where not known.
"""
COLUMNS = ("core", "size", "T", "seed", "sees", "digits\n%", "whole\n%", "samples", "s", "paper")


def notes(options: CopyOptions) -> str:
    """Return the text above the table: the task, and what the columns hold."""
    return NOTES.format(minutes=options.minutes, threads=options.threads)


def progress_line(result: CopyResult) -> str:
    """Return a line on how a training is going."""
    return (
        f"{result.core}, T = {result.blanks}, seed {result.seed}: {result.samples} samples, "
        f"loss {result.loss:.3f}, digits {_percent(result.digits)} %, "
        f"sequences {_percent(result.sequences)} %, {result.seconds:.0f} s"
    )


def copy_table(
    results: Sequence[CopyResult], unique: int | None = None, shortest: int | None = None
) -> Table:
    """Return a table with one row for each training; for the others see `CopyOptions`."""
    kind = "fresh" if unique is None else f"{unique:,} unique, repeated"
    ticks = "T" if shortest is None else f"{shortest} to T"
    table = compact_table(f"Copying after {ticks} ticks, from {kind} sequences", COLUMNS)
    table.columns[0].no_wrap = False  # on a narrow screen names may wrap, figures may not
    for result in results:
        table.add_row(
            result.core,
            f"{result.parameters / 1000:.0f}",
            str(result.blanks),
            str(result.seed),
            _seen(result),
            _percent(result.digits),
            _percent(result.sequences),
            f"{'' if result.perfect else '>'}{result.samples:,}",
            f"{result.seconds:.0f}",
            PAPER_SAMPLES.get((result.core, result.blanks), "—"),
        )
    return table


def figures(
    configs: Mapping[str, CoreConfig], options: CopyOptions, results: Sequence[CopyResult]
) -> dict[str, Any]:
    """Return all figures as plain data, with the sizes and options that they belong to."""
    fields = ("width", "batch_size", "learning_rate", "seconds", "unique", "shortest")
    return {
        "cores": {name: core_to_dict(config) for name, config in configs.items()},
        "options": {field: getattr(options, field) for field in fields},
        "results": [{**asdict(result), "perfect": result.perfect} for result in results],
    }


def _seen(result: CopyResult) -> str:
    return "all" if result.ticks_seen >= result.blanks + 2 * NUM_DIGITS else str(result.ticks_seen)


def _percent(portion: float) -> str:
    """Format a portion in percent, rounded down: it is 100.0 only if nothing is missing."""
    return f"{int(portion * 1000) / 10:.1f}"
