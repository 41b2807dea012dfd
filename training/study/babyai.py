"""Levels of BabyAI (Chevalier-Boisvert et al. 2019), grid worlds with an instruction, and their bot."""

from __future__ import annotations

from typing import Any

import gymnasium
from minigrid.utils.baby_ai_bot import BabyAIBot

from ttm.policy.errors import require_choice
from ttm.training.study.minigrid import GaveUp, MinigridEnvironment, MinigridView

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


def babyai_environment(level: str) -> MinigridEnvironment:
    """Return the newest version of a level: `GoToLocal` -> gymnasium's `BabyAI-GoToLocal-v0`.

    Raises `UserError` if there is no such level.
    """
    ids = sorted(name for name in gymnasium.registry if name.startswith("BabyAI-"))
    levels = {name.removeprefix("BabyAI-").rpartition("-v")[0]: name for name in ids}
    require_choice("--level", level, tuple(levels))
    return MinigridEnvironment(levels[level])
