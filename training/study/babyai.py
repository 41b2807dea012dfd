"""`ttm study babyai`: which memory learns a level of BabyAI from its bot?

BabyAI (Chevalier-Boisvert et al. 2019) is a set of grid worlds with an instruction in English.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
from minigrid.utils.baby_ai_bot import BabyAIBot

from ttm.policy.errors import require_choice
from ttm.training.study.minigrid import Expert, GaveUp, MinigridEnvironment, MinigridView
from ttm.training.study.minigrid_study import ActingResult, Effort, MinigridStudy

LONGEST_PLANNING = 100
"""How often the bot may read its plan within one tick; it needs up to 9 reads. On some seeds, such as 63
of Unlock, it adds sub-goals and removes them again without end."""


class BoundedPlan(list[Any]):
    """The bot's stack of sub-goals, which counts how often its items are read.

    A limit on the reads stops the bot at the same place in every run; a limit on the time would not.
    """

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        """Count the read. Raises `GaveUp` if `reads` exceeds `LONGEST_PLANNING`."""
        self.reads += 1
        if self.reads > LONGEST_PLANNING:
            raise GaveUp
        return super().__getitem__(index)


class BoundedBot(BabyAIBot):
    """minigrid's bot, which gives up instead of planning without end."""

    def __init__(self, environment: MinigridEnvironment) -> None:
        super().__init__(environment.unwrapped)
        self.stack: BoundedPlan = BoundedPlan(self.stack)

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """See `Expert`. Raises `GaveUp` if the bot does not stop planning, or raises an error."""
        self.stack.reads = 0
        try:
            return int(self.replan(previous_action))
        except Exception as error:  # the bot gives up by assertions and by errors of many kinds
            raise GaveUp from error


def environment_id(level: str) -> str:
    """Return gymnasium's id of a level, the newest version: `GoToLocal` -> `BabyAI-GoToLocal-v0`.

    Raises `UserError` if there is no such level.
    """
    ids = sorted(name for name in gymnasium.registry if name.startswith("BabyAI-"))
    levels = {name.removeprefix("BabyAI-").rpartition("-v")[0]: name for name in ids}
    require_choice("--level", level, tuple(levels))
    return levels[level]


EFFORTS = {
    "GoToLocal": Effort(50_000, 1_500, 1_024),
    "GoToSeq": Effort(20_000, 1_600, 2_048),
    "GoToSeqS5R2": Effort(40_000, 2_000, 2_048),
}
"""Level -> effort by default."""
OTHER_LEVELS = Effort(10_000, 2_000, 2_048)


@dataclass(frozen=True)
class StudyBabyaiCommand(MinigridStudy):
    """Clone the bot of a BabyAI level with every core, and count successes in new episodes.

    Needs minigrid: pip install 'ttm-policy-stack[babyai]'. All cores have the same number of parameters
    within one per cent, learn from the same demonstrations in the same batches, and train for the
    same number of steps. Demonstrations and results are kept under --cache and are not made again.
    Several of these commands may run at the same time, each for other cores.
    """

    level: str = "GoToLocal"
    """BabyAI's name without BabyAI- and -v0. GoToSeq needs a memory, GoToLocal does not."""
    demonstrations: int | None = None
    """Episodes to learn from.
    Default: 50,000 for GoToLocal, 20,000 for GoToSeq, 40,000 for GoToSeqS5R2, else 10,000."""
    steps: int | None = None
    """Training steps of every core. Default: 1,500 for GoToLocal, 1,600 for GoToSeq, else 2,000."""
    cache: Path = Path("runs/babyai")
    """Folder in which demonstrations and results are kept."""

    suite, demonstrator = "BabyAI", "its bot"
    columns = ("ticks",)
    notes = """\
ticks: mean length of an episode, failed ones included. Drawn actions help a policy out of going round in
circles."""

    @property
    def default_effort(self) -> Effort:
        return EFFORTS.get(self.level, OTHER_LEVELS)

    def environment(self) -> MinigridEnvironment:
        return MinigridEnvironment(environment_id(self.level))

    def expert(self, environment: MinigridEnvironment) -> Expert:
        return BoundedBot(environment).act

    def cells(self, acting: ActingResult) -> tuple[str, ...]:
        return (f"{fmean(acting.lengths):.1f}",)
