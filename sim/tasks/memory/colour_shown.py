"""Pick up the object of the colour that a panel showed, before any object stood there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import content, cue
from ttm.sim.tasks.memory.chosen import PickChosen


class ColourShown(PickChosen):
    """All fields of the panel take a colour; at "go" three objects appear, one of them of that colour.

    The colours are drawn for each episode, and so is which object has which.
    """

    template = "pick up the object of the colour that was shown"
    goals = (*content.HUES, *content.HELD_OUT_HUES)
    add_to_scene = staticmethod(content.add_coloured_row)

    def sample(self, rng: np.random.Generator) -> content.ContentState:
        return content.ContentState(**content.draw_row(rng))

    def update(self, world: KitchenWorld) -> None:
        """Show the cue, and the objects from "go" on."""
        super().update(world)
        if world.tick == 0:
            content.paint_row(world)
        content.show_row(world, go_tick=self.go_tick(world))

    def fields(self, choice: str) -> Mapping[str, cue.Colour]:
        return dict.fromkeys(cue.SIDES, content.rgba(choice))
