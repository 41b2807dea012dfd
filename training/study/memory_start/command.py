"""`ttm study memory-start`: which memory should a training window start from?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.memory_start.options import MemoryStartOptions


@dataclass(frozen=True)
class StudyMemoryStartCommand(MemoryStartOptions):
    """Compare the ways of `ttm train --memory` by how well the memory holds over 300 ticks.

    Keeps the vision of a trained policy and trains its core and action head from random weights,
    with each way to start a window (zero, carry, burn-in), on the demonstrations as they are and on
    long episodes made of demonstrations of one instruction. Measures the error in use on held-out
    episodes and the drift over 300 ticks, as ttm bench drift does. Takes half an hour to an hour on
    one core.

    For example:
      ttm collect --task all --episodes 300 --out demos
      ttm study memory-start --data demos --out runs/memory_start

    """

    def run(self) -> int:
        """Run the study, print its table after each seed, and return the exit code."""
        self.check()
        from ttm.training.study.memory_start.study import run  # loads torch

        return run(self)
