"""The notes, the table and the figures of `ttm study chunks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ttm.policy.cores.configs import core_to_dict
from ttm.training.common.tables import compact_table
from ttm.training.study.chunks.models import ChunkModel
from ttm.training.study.chunks.options import ChunksOptions
from ttm.training.study.chunks.training import ChunkResult

NOTES = """\
Chunks L#L of V letters. The model predicts each symbol from those before it: the first symbol of
a chunk is a guess (1 / V), the second is #, and the third repeats the first.

  right   held-out symbols that are predicted, with half of the 95 % interval, and
  1 2 3   the same for the first, second and third symbol of a chunk.
  limit   the highest possible "right", except by luck: (2 + 1/V)/3 for a core that remembers two
          symbols; (1 + 2/V)/3 for a hierarchy that shortens by three without vanilla layers, which
          has not seen the first symbol of a chunk when it predicts the third; less for such a
          hierarchy with repeating, and for a core without memory, because they do not know which
          symbol of a chunk comes next.
  s       seconds of training.

{steps} steps each; CPU threads: {threads}. The two formulas are those of the Hourglass paper
(Nawrot et al. 2021, appendix A.1); we do not know its figures for these sizes.
"""
COLUMNS = ("V", "model", "seed", "right", "±", "limit", "1", "2", "3", "s")


def notes(options: ChunksOptions) -> str:
    """Return the text above the table: the task, and what the columns hold."""
    return NOTES.format(steps=options.steps, threads=options.threads)


def progress_line(result: ChunkResult) -> str:
    """Return a line on a training that has ended."""
    return (
        f"V = {result.letters}, {result.name}, seed {result.seed}: {result.accuracy:.3f}, "
        f"{result.seconds:.0f} s"
    )


def chunk_table(results: Sequence[ChunkResult]) -> Table:
    """Return a table with one row for each training."""
    table = compact_table("Chunks L#L: accuracy of the prediction", COLUMNS)
    table.columns[1].justify = "left"
    for result in results:
        table.add_row(
            str(result.letters),
            result.name,
            str(result.seed),
            f"{result.accuracy:.3f}",
            f"{1.96 * result.deviation:.3f}",
            "—" if result.limit is None else f"{result.limit:.3f}",
            *(f"{portion:.2f}" for portion in result.by_place),
            f"{result.seconds:.0f}",
        )
    return table


def figures(
    models: Sequence[ChunkModel], options: ChunksOptions, results: Sequence[ChunkResult]
) -> dict[str, Any]:
    """Return all figures as plain data, with the sizes and options that they belong to."""
    fields = ("steps", "width", "batch_size", "learning_rate")
    return {
        "models": {model.name: core_to_dict(model.config) for model in models},
        "options": {field: getattr(options, field) for field in fields},
        "results": [asdict(result) for result in results],
    }
