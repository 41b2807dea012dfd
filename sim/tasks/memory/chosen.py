"""What memory tasks share: opening one of three drawers, and picking one of three objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import DRAWER_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.memory.content import RowState
from ttm.sim.tasks.motions import LiftTask, OpenTask, pulled_m
from ttm.sim.tasks.task import Grasp

DRAWERS = tuple(DRAWER_Z_M)
CHOSEN_M = 0.06
"""A drawer is chosen when it has come out this far."""
WAITING_Z_M = {"top": 0.98, "middle": 0.905, "bottom": 0.76}
"""The gripper's height while the expert drives up to a drawer. All three lie ahead alike, so that
this alone tells from the first action on which one it goes for."""


class OpenChosen(OpenTask, cue.CueTask):
    """The robot stands before the chest and must open the drawer that the cue means."""

    goals = DRAWERS

    def choice(self, world: KitchenWorld) -> str | None:
        """Return the drawer that has come out furthest, if it is being opened."""
        furthest = max(DRAWERS, key=lambda drawer: pulled_m(world, drawer))
        return furthest if pulled_m(world, furthest) > CHOSEN_M else None

    def grasp(self, world: KitchenWorld) -> Grasp:
        return replace(super().grasp(world), waiting_z_m=WAITING_Z_M[world.start.goal])


class PickChosen(LiftTask, cue.CueTask):
    """Three objects before a panel, which shows which of them to pick up."""

    cue_ticks = 4

    @abstractmethod
    def fields(self, choice: str) -> Mapping[str, cue.Colour]:
        """Return the fields that the cue for a choice lights up, and their colours."""

    def update(self, world: KitchenWorld) -> None:
        """Put the panel behind the objects, and show the cue."""
        if world.tick == 0:
            cue.place_panel(world, cue.start_of(world, RowState).centre_y_m)
        shown, _ = self.shown(world)
        cue.colour_panel(world, go=self.go(world), shown=self.fields(shown) if shown else {})

    def choice(self, world: KitchenWorld) -> str | None:
        start = cue.start_of(world, RowState)
        bodies = {each: world.data.body(start.bodies[each]) for each in start.choices}
        return cue.approached(world, {each: body.xpos for each, body in bodies.items()})

    def body_to_lift(self, world: KitchenWorld) -> tuple[str, float]:
        start = cue.start_of(world, RowState)
        name = start.bodies[start.goal]
        return name, OBJECTS[name].height_m
