"""The options of `ttm compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class CompareCommand:
    """Compare any number of evaluations: rates with intervals, paired tests, and one page.

    Every evaluation is compared with the first one of the same gap, on the initial states that both
    started from (McNemar's exact test), by success and, in memory tasks, by choice. An evaluation with
    several gaps or probes counts as one for each of their combinations.

    For example:
      ttm compare runs/ours runs/lstm runs/none --out runs/comparison
    """

    results: Annotated[Positional[tuple[Path, ...]], arg(metavar="RESULT …")]
    """Folders that `ttm evaluate --out` has written, or the result.json in them."""
    out: Path = Path("comparison")
    """Folder for report.html; open it in a browser."""

    def run(self) -> int:
        """Compare; return the exit code."""
        from ttm.sim.comparison.compare import compare_and_report

        return compare_and_report(self.results, self.out)
