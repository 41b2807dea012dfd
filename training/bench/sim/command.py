"""`ttm bench sim`: time the ticks of the simulated kitchen, by part."""

from __future__ import annotations

from dataclasses import dataclass

from ttm.sim.kitchen.rendering import require_rendering
from ttm.training.bench.sim.options import SimOptions


@dataclass(frozen=True)
class BenchSimCommand(SimOptions):
    """Time the control ticks of the simulated kitchen on one core, by part. Takes about half a minute.

    The scripted expert drives the robot, whose own time does not count. Each episode runs twice in
    turns: with the frames as every command renders them, and with all of the scene drawn at every
    tick. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rendering()
        from ttm.training.bench.sim.bench import run_bench

        run_bench(self)
        return 0
