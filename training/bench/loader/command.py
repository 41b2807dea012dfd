"""`ttm bench loader`: time the batches of a training, by where their frames come from."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.loader.options import LoaderOptions


@dataclass(frozen=True)
class BenchLoaderCommand(LoaderOptions):
    """Time the batches of a training, with frames from memory and from files.

    Episodes of random smooth pictures are written to a temporary folder, which takes up to a
    gigabyte. Prints windows a second, and the share of a training step that is spent waiting for its
    batch. Where robomimic is installed, its SequenceDataset reads the same windows beside. Takes some
    minutes; run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.loader.bench import run_bench

        run_bench(self)
        return 0
