"""`ttm study copy`: which memory can copy ten digits over hundreds of ticks?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.copy.options import CopyOptions


@dataclass(frozen=True)
class StudyCopyCommand(CopyOptions):
    """Train memories to repeat ten digits after T ticks of nothing (the TLB paper's copying task).

    A training ends when all held-out sequences, 200 of each length, are right from the first digit
    to the last, or when its time is up. With the defaults it may take most of an hour until the
    table is printed; with --core tlb --lengths 100 it takes one or two minutes.
    """

    def run(self) -> int:
        """Train the cores one after another, print the table, and return the exit code."""
        self.check()
        from ttm.training.study.copy.study import run  # loads torch, which `ttm --help` must not

        return run(self)
