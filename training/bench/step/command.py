"""`ttm bench step`: time a training step on whole episodes, against an LSTM of as many weights."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.bench.step.options import StepOptions


@dataclass(frozen=True)
class BenchStepCommand(StepOptions):
    """Time a training step on whole episodes with frozen vision, part by part.

    The step is that of `ttm train --init … --freeze-vision --window episode --recall-weight 2`. Each
    core is compared, in the same run, with an LSTM of as many weights. Takes some minutes; run it
    while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        from ttm.training.bench.step.bench import run_bench

        run_bench(self)
        return 0
