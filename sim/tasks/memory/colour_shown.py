"""Pick up the object of the colour that a panel showed, wherever it stands."""

from __future__ import annotations

from ttm.sim.kitchen.scene import OBJECTS
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.chosen import PickChosen, PickState
from ttm.sim.tasks.memory.cue import SIDES, colour_panel, start_of


class ColourShown(PickChosen):
    """All fields of the panel take the colour of one object: pick that object up.

    The cue does not tell where to go. What is remembered must be compared with what is seen.
    """

    template = "pick up the object of the colour that was shown"
    goals = tuple(OBJECTS)
    cue_ticks = 4

    def update(self, world: KitchenWorld) -> None:
        """Show the right object's colour."""
        super().update(world)
        start = start_of(world, PickState)
        visible = start.left_on or world.tick < self.cue_ticks
        shown = dict.fromkeys(SIDES, OBJECTS[start.goal].rgba) if visible else {}
        colour_panel(world, go=self.go(world), shown=shown)
