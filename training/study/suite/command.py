"""`ttm study suite`: which memory learns the memory suite of the simulated kitchen?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.common.threads import wait_passively
from ttm.training.study.suite.options import SuiteOptions


@dataclass(frozen=True)
class StudySuiteCommand(SuiteOptions):
    """Train policies that differ in their core alone on a robot's memory tasks, and compare their choices.

    Each core and seed is trained as `ttm train --init VISION --freeze-vision --window WINDOW` does,
    with the same demonstrations, steps and losses, and as many parameters within 2 %, and evaluated
    as `ttm evaluate --gap --probe` does. Each has a folder of its own in OUT. What is there is not
    made again, and Ctrl-C loses no training: the same command goes on exactly where it stopped.
    Several of these commands may share one OUT.

    OUT also receives report.md, figures.json and choices.svg, of all that is there.

    Example: ttm study suite --data demos/memory --init shipped --core ours lstm --steps 2000
    """

    def run(self) -> int:
        """Make what is missing, print and write the report, and return the exit code."""
        self.check()
        wait_passively()
        from ttm.training.study.suite.study import run

        return run(self)
