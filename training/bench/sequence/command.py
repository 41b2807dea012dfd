"""`ttm bench sequence`: compare the cost of long sequences, and the prediction of a text."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.sequence.options import SequenceOptions


@dataclass(frozen=True)
class BenchSequenceCommand(SequenceOptions):
    """Compare the cost of long sequences: TLB by chunk size, Hourglass by hierarchy.

    All figures are ratios to a plain Transformer in the same run, which is causal and has no window.

    cost: time and memory of a training pass, time and state of a control tick late in an episode; the
    counterpart of table 5 of the TLB paper. Takes two minutes. quality: bits for each byte of a text
    after equal trainings, beside memory and time; the counterpart of figure 6 of the Hourglass paper,
    scaled down. Takes five minutes. Run them while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.sequence.bench import run_bench

        run_bench(self)
        return 0
