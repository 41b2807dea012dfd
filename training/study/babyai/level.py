"""The levels of BabyAI (Chevalier-Boisvert et al. 2019) with their bot as the expert."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import gymnasium

from ttm.policy.errors import UserError
from ttm.training.study.babyai.bot import BoundedBot
from ttm.training.study.minigrid.environment import MinigridEnvironment

PREFIX = "BabyAI-"


@dataclass(frozen=True)
class BabyaiLevel:
    """A level of BabyAI; see `Level`."""

    name: str
    """Such as "GoToLocal"."""

    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""
        return MinigridEnvironment(environment_id(self.name))

    def expert(self, environment: MinigridEnvironment) -> BoundedBot:
        """Return a bot for the episode that has just begun in `environment`."""
        return BoundedBot(environment)


def environment_id(level: str) -> str:
    """Return gymnasium's id of a level, the newest version: `GoToLocal` -> `BabyAI-GoToLocal-v0`.

    Raises `UserError` with the most similar names if there is no such level.
    """
    levels = _levels()
    if level not in levels:
        near = difflib.get_close_matches(level, levels, n=3, cutoff=0.3)
        hint = (
            f"the nearest are {', '.join(near)}"
            if near
            else f"there are {', '.join(sorted(levels))}"
        )
        raise UserError(f"--level is '{level}', which BabyAI does not have; {hint}")
    return levels[level]


def _levels() -> dict[str, str]:
    """Return level -> the id of its newest version."""
    ids = sorted(name for name in gymnasium.registry if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX).rpartition("-v")[0]: name for name in ids}
