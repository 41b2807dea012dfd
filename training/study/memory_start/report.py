"""The table, the pictures and the figures of `ttm study memory-start`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ttm.datasets.tables import TitledTable
from ttm.training.bench.drift.chart import draw_drift
from ttm.training.bench.drift.measure import ChainRun, DriftRuns
from ttm.training.bench.drift.summary import DriftSummary, summarize
from ttm.training.study.memory_start.examination import Found

COLUMNS = (
    "trained on",
    "memory",
    "error in use",
    "old memory",
    "chains",
    "error, last 100",
    "drift",
    "norm",
    "cost of keeping",
    "verdict",
)
LAST_TICKS = 100
BIN_TICKS = 20


def report(
    console: Console, out: Path, steps: int, found: Mapping[tuple[str, str], list[Found]]
) -> dict[str, Any]:
    """Print the table, write the pictures to `out`, and return the figures as plain data.

    found: (kind of episodes, memory) -> the measurements of each seed.
    """
    seeds = max(len(some) for some in found.values())
    table = TitledTable(
        f"{steps} steps, {seeds} seeds: mean ± deviation over seeds; 95 % intervals"
    )
    for heading in COLUMNS:
        table.add_column(heading)
    figures: dict[str, Any] = {}
    drawn: dict[tuple[str, str], dict[str, DriftSummary]] = {}
    for (kind, memory), some in found.items():
        errors, shares = [f.in_use for f in some], [f.old_memory for f in some]
        entry: dict[str, Any] = {"error_in_use": errors, "old_memory": shares}
        for chains in ("changing", "same"):
            runs = [getattr(f, chains) for f in some]
            summary = summarize(together(runs), bin_ticks=BIN_TICKS)
            drawn.setdefault((kind, chains), {})[memory] = summary
            last = [last_error(run) for run in runs]
            facts = (
                chains,
                spread(last),
                str(summary.drift),
                str(summary.norm_growth),
                str(summary.cost),
            )
            table.add_row(kind, memory, spread(errors), spread(shares), *facts, summary.verdict)
            each = [summarize(run, bin_ticks=BIN_TICKS).drift.value for run in runs]
            entry[chains] = {"error_last_100": last, "drift_of_each": each, **summary.to_json()}
        figures[f"{kind}, {memory}"] = entry
    console.print(table)
    for (kind, chains), summaries in drawn.items():
        draw_drift(summaries, out / f"trained_on_{kind}_{chains}_instruction.png")
    return figures


def together(runs: Sequence[DriftRuns]) -> DriftRuns:
    """Return the chains of the trainings of all seeds side by side."""

    def stacked(some: Sequence[ChainRun]) -> ChainRun:
        norms = np.concatenate([run.norms for run in some])
        return ChainRun(norms, np.concatenate([run.errors for run in some]))

    seams = np.concatenate([run.seams for run in runs])
    kept, control = stacked([run.kept for run in runs]), stacked([run.control for run in runs])
    return DriftRuns(kept, control, seams)


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation over seeds as text."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"


def last_error(runs: DriftRuns) -> float:
    """Return the normalised error of the last `LAST_TICKS` ticks with the memory kept."""
    return float(np.sqrt(runs.kept.errors[:, -LAST_TICKS:].mean()))
