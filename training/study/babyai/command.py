"""`ttm study babyai`: which memory learns a level of BabyAI from its bot?"""

from __future__ import annotations

from dataclasses import dataclass

from ttm.training.study.babyai.options import BabyaiOptions


@dataclass(frozen=True)
class StudyBabyaiCommand(BabyaiOptions):
    """Clone the bot of a BabyAI level with every core, and count successes in new episodes.

    Needs minigrid: pip install 'minigrid>=3,<4'. All cores have the same number of parameters
    within one per cent, learn from the same demonstrations in the same batches, and train for the
    same number of steps. Demonstrations and results are kept under --cache and are not made again.
    Several of these commands may run at the same time, each for other cores.
    """

    def run(self) -> int:
        """Train and evaluate the cores, print the tables, and return the exit code."""
        self.check()
        from ttm.training.study.babyai.study import run  # loads torch, which `ttm --help` must not

        return run(self)
