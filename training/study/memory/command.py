"""`ttm study memory`: which memory remembers an object down a corridor, in MiniGrid's Memory levels?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.memory.options import MemoryOptions


@dataclass(frozen=True)
class StudyMemoryCommand(MemoryOptions):
    """Clone an expert of MiniGrid's Memory levels with every core, and count right choices.

    The agent sees a key or a ball in a room, walks down a corridor, and has to go to the object of
    the same kind at its end, where the first one cannot be seen any more.

    Needs minigrid: pip install 'minigrid>=3,<4'. All cores have the same number of parameters
    within one per cent and the same first weights around them, learn from the same demonstrations in
    the same batches, and train for the same number of steps. Demonstrations and results are kept
    under --cache and are not made again. Several of these commands may run at the same time, each
    for other cores or other --core-options; the tables hold the results of all of them.
    """

    def run(self) -> int:
        """Train and evaluate the cores, print the tables, and return the exit code."""
        self.check()
        from ttm.training.study.memory.study import run  # loads torch, which `ttm --help` must not

        return run(self)
