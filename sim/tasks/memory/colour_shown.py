"""Pick up the object of the colour that a panel showed, wherever it stands."""

from __future__ import annotations

from collections.abc import Mapping

from ttm.sim.kitchen.scene import OBJECTS
from ttm.sim.tasks.memory.chosen import PickChosen, PickState
from ttm.sim.tasks.memory.cue import SIDES, Colour


class ColourShown(PickChosen):
    """All fields of the panel take the colour of one object: pick that object up.

    The cue does not tell where to go. What is remembered must be compared with what is seen.
    """

    template = "pick up the object of the colour that was shown"
    goals = tuple(OBJECTS)

    def shown(self, start: PickState) -> Mapping[str, Colour]:
        return dict.fromkeys(SIDES, OBJECTS[start.goal].rgba)
