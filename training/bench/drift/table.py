"""The table that `ttm bench drift` prints for each checkpoint."""

from __future__ import annotations

from rich.table import Table

from ttm.training.bench.drift.summary import DriftSummary
from ttm.training.bench.report import rows_table


def drift_table(name: str, summary: DriftSummary) -> Table:
    """Return the errors and norms by tick number, with the memory kept and with it reset."""
    return rows_table(
        f"{name}: normalised action error, and norm of the tokens of the memory",
        {
            "ticks": lambda bins: f"{bins[0].first} to {bins[0].stop - 1}",
            "error": lambda bins: f"{bins[0].error:.3f} ± {bins[0].error_deviation:.3f}",
            "error,\nmemory reset": lambda bins: (
                f"{bins[1].error:.3f} ± {bins[1].error_deviation:.3f}"
            ),
            "norm": lambda bins: f"{bins[0].norm:.2f}",
            "norm,\nmemory reset": lambda bins: f"{bins[1].norm:.2f}",
        },
        list(zip(summary.kept, summary.control, strict=True)),
    )


def drift_notes(name: str, summary: DriftSummary) -> str:
    """Return the verdict, and the cost of keeping the memory over seams."""
    return (
        f"{name} {summary.in_words()}\n"
        f"{name}: a memory kept over seams costs {summary.cost} times the error"
    )
