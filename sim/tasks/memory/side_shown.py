"""Pick up the object on the side that a panel showed."""

from __future__ import annotations

from collections.abc import Mapping

from ttm.sim.tasks.memory.chosen import PickChosen, PickState
from ttm.sim.tasks.memory.cue import LIT, SIDES, Colour


class SideShown(PickChosen):
    """One of the panel's three fields lights up: pick up the object that stands before it."""

    template = "pick up the object on the side that was shown"
    goals = SIDES

    def shown(self, start: PickState) -> Mapping[str, Colour]:
        return {start.goal: LIT}
