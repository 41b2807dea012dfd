"""`ttm study listops`: which memory learns the value of nested operations, read token by token?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.listops.options import ListopsOptions


@dataclass(frozen=True)
class StudyListopsCommand(ListopsOptions):
    """Train memories to predict the value of ListOps expressions, scaled down.

    For example, the value of `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9.

    The core reads one token in each tick and predicts the value at the last one. The expressions
    are made as in Long Range Arena, but they are much shorter, and the models are small, so that
    all cores take about ten minutes on one CPU core. The figures are not comparable with published
    ones.
    """

    def run(self) -> int:
        """Train the cores one after another, print the table, and return the exit code."""
        self.check()
        from ttm.training.study.listops.study import run  # loads torch, which `ttm --help` must not

        return run(self)
