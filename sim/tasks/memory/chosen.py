"""What memory tasks share: opening one of three drawers, and picking one of three objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, DRAWER_Z_M, OBJECTS
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.motions import (
    LiftTask,
    OpenTask,
    base_facing,
    gripper_start,
    lay_objects,
    pulled_m,
)
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


@dataclass(frozen=True, kw_only=True)
class PickState(cue.CueState):
    """Three objects in a row before the panel."""

    sides: dict[str, str]
    """Side -> the object that stands there."""
    centre_y_m: float
    """Where the middle of the row lies."""

    def object_of(self, choice: str) -> str:
        """Return the object that a choice means, which is a side or the object itself."""
        return self.sides.get(choice, choice)


class PickChosen(LiftTask, cue.CueTask):
    """Three objects stand before a panel, which shows which of them to pick up."""

    cue_ticks = 4
    add_to_scene = staticmethod(cue.add_panel)

    @abstractmethod
    def shown(self, start: PickState) -> Mapping[str, cue.Colour]:
        """Return the fields that the cue lights up, and their colours."""

    def sample(self, rng: np.random.Generator) -> PickState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        choices = tuple(name for name in (*cue.SIDES, *chosen) if name in self.goals)
        return PickState(
            goal=choices[rng.integers(3)],
            objects_m=placed,
            base_pose=base,
            gripper_m=gripper_start(rng),
            choices=choices,
            gap=cue.draw_gap(rng),
            sides=dict(zip(cue.SIDES, chosen, strict=True)),
            centre_y_m=centre_y_m,
        )

    def update(self, world: KitchenWorld) -> None:
        """Put the panel behind the objects, and show the cue."""
        start = cue.start_of(world, PickState)
        if world.tick == 0:
            cue.place_panel(world, start.centre_y_m)
        visible = start.left_on or world.tick < self.cue_ticks
        cue.colour_panel(world, go=self.go(world), shown=self.shown(start) if visible else {})

    def choice(self, world: KitchenWorld) -> str | None:
        start = cue.start_of(world, PickState)
        bodies = {each: world.data.body(start.object_of(each)) for each in start.choices}
        return cue.approached(world, {each: body.xpos for each, body in bodies.items()})

    def body_to_lift(self, world: KitchenWorld) -> tuple[str, float]:
        start = cue.start_of(world, PickState)
        name = start.object_of(start.goal)
        return name, OBJECTS[name].height_m
