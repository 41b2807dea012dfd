"""`ttm bench drift`: measure the norm of the memory and the action error over hundreds of ticks."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.drift.options import DriftOptions


@dataclass(frozen=True)
class BenchDriftCommand(DriftOptions):
    """Measure whether a memory drifts in episodes that are much longer than those trained on.

    Lays recorded episodes end to end, as chains of --ticks ticks. The memory continues from one episode
    to the next while the instruction changes, so that ticks differ in the age of the memory alone. For
    comparison, the same ticks run with the memory reset at the start of every episode, as in use. Prints
    a table and a verdict; writes drift.png and drift.json to OUT.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.drift.bench import run_bench

        run_bench(self)
        return 0
