"""`ttm bench tick`: time a control tick, against plain PyTorch and over a long episode."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.tick.options import TickOptions


@dataclass(frozen=True)
class BenchTickCommand(TickOptions):
    """Time a control tick on this machine's CPU. Takes some minutes; run it while nothing else runs.

    unit: the unit of the Token Turing Machine at the paper's robot setting, against a plain eager
    PyTorch version with the same weights. flat: the unit and a whole policy over 10,000 ticks, beside
    a causal Transformer without a window, whose cost grows; then ticks of tlb and hourglass by age
    and phase, on one thread. whole: from images to the action, for every preset. cores: every
    temporal core.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.tick.bench import run_bench

        run_bench(self)
        return 0
