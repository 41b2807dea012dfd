"""Pick up the object on the side that a panel showed."""

from __future__ import annotations

from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.chosen import PickChosen, PickState
from ttm.sim.tasks.memory.cue import LIT, SIDES, colour_panel, start_of


class SideShown(PickChosen):
    """One of the panel's three fields lights up: pick up the object that stands before it."""

    template = "pick up the object on the side that was shown"
    goals = SIDES
    cue_ticks = 4

    def object_of(self, start: PickState, choice: str) -> str:
        """Return the object on that side."""
        return start.sides[choice]

    def choices_of(self, sides: dict[str, str]) -> tuple[str, ...]:
        """The choices are the three sides."""
        return SIDES

    def update(self, world: KitchenWorld) -> None:
        """Light up the field of the right side."""
        super().update(world)
        start = start_of(world, PickState)
        visible = start.left_on or world.tick < self.cue_ticks
        colour_panel(world, go=self.go(world), shown={start.goal: LIT} if visible else {})
