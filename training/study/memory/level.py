"""MiniGrid's Memory levels (Chevalier-Boisvert et al. 2023) with their scripted expert."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ttm.policy.errors import UserError
from ttm.training.study.memory.expert import MemoryExpert
from ttm.training.study.minigrid.environment import MinigridEnvironment

REGISTERED = "MiniGrid-MemoryS7-v0"
"""Any of MiniGrid's Memory levels: they are the same class with other arguments."""
SMALLEST = 7
"""Side of the smallest map that has a room, a corridor and a crossing."""


@dataclass(frozen=True)
class MemoryLevel:
    """A Memory level of any size; see `Level`."""

    name: str
    """"MemoryS" and the side of the map; "Random" at the end draws the corridor's length."""

    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""
        found = re.fullmatch(r"MemoryS(\d+)(Random)?", self.name)
        size = int(found[1]) if found else 0
        if found is None or size < SMALLEST or size % 2 == 0:
            raise UserError(
                f"--level is '{self.name}'; give MemoryS and an odd size of {SMALLEST} or more, "
                f"with or without Random after it, such as MemoryS13 or MemoryS17Random"
            )
        return MinigridEnvironment(REGISTERED, size=size, random_length=found[2] is not None)

    def expert(self, environment: MinigridEnvironment) -> MemoryExpert:
        """Return an expert for the episode that has just begun in `environment`."""
        return MemoryExpert(environment)
