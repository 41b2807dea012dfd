"""`ttm bench opening`: open a large data set twice, and train on it from files."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.opening.options import OpeningOptions


@dataclass(frozen=True)
class BenchOpeningCommand(OpeningOptions):
    """Open a large data set for the first and the second time, and take batches from its files.

    Made-up episodes are written in one file each, and again in a few merged files. Each opening is a
    process of its own, of which time and largest memory are told; the second finds the index that the
    first has left. After it, batches are made as in a training, and the growth of memory is told. The
    exit code is 1 if a bar was missed. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.opening.bench import run_bench

        return run_bench(self)
