"""Opening one of three drawers: what `count` and `search` share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, DRAWER_Z_M, OBJECTS
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.cue import (
    SIDES,
    CueState,
    CueTask,
    add_panel,
    approached,
    draw_gap,
    place_panel,
    start_of,
)
from ttm.sim.tasks.motions import (
    OPEN_M,
    base_facing,
    grasp_handle,
    grasp_upright,
    gripper_start,
    is_lifted,
    lay_objects,
    lift,
    pull,
    pulled_m,
)
from ttm.sim.tasks.task import Grasp, Motion

DRAWERS = tuple(DRAWER_Z_M)
CHOSEN_M = 0.06
"""A drawer is chosen when it has come out this far."""
WAITING_Z_M = {"top": 0.98, "middle": 0.905, "bottom": 0.76}
"""The gripper's height while the expert drives up to a drawer. All three lie ahead alike, so that
this alone tells from the first action on which one it goes for."""


class OpenChosen(CueTask):
    """The robot stands before the chest and must open the drawer that the cue means."""

    goals = DRAWERS

    def choice(self, world: KitchenWorld) -> str | None:
        """Return the drawer that has come out furthest, if it is being opened."""
        furthest = max(DRAWERS, key=lambda drawer: pulled_m(world, drawer))
        return furthest if pulled_m(world, furthest) > CHOSEN_M else None

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the right drawer is open."""
        return pulled_m(world, world.start.goal) > OPEN_M

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the right drawer by its handle."""
        handle = grasp_handle(world, world.start.goal)
        return replace(handle, waiting_z_m=WAITING_Z_M[world.start.goal])

    def carry(self, world: KitchenWorld) -> Motion:
        """Pull it by driving backwards."""
        return pull(world, world.start.goal)


# Picking one of three objects before a panel: what `side_shown` and `colour_shown` share.


@dataclass(frozen=True, kw_only=True)
class PickState(CueState):
    """Three objects in a row before the panel."""

    sides: dict[str, str]
    """Side -> the object that stands there."""
    centre_y_m: float
    """Where the middle of the row lies."""


class PickChosen(CueTask):
    """Three objects stand before a panel, which shows which of them to pick up.

    A task says what its choices are by `object_of`.
    """

    def object_of(self, start: PickState, choice: str) -> str:
        """Return the object that the choice means."""
        return choice

    def choices_of(self, sides: dict[str, str]) -> tuple[str, ...]:
        """Return the choices that there are with these objects."""
        return tuple(sides.values())

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add the panel."""
        add_panel(scene)

    def sample(self, rng: np.random.Generator) -> PickState:
        """See `Task.sample`."""
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        sides = dict(zip(SIDES, chosen, strict=True))
        choices = self.choices_of(sides)
        return PickState(
            goal=choices[rng.integers(3)],
            objects_m=placed,
            base_pose=base,
            gripper_m=gripper_start(rng),
            choices=choices,
            gap=draw_gap(rng),
            sides=sides,
            centre_y_m=centre_y_m,
        )

    def update(self, world: KitchenWorld) -> None:
        """Put the panel behind the objects."""
        if world.tick == 0:
            place_panel(world, start_of(world, PickState).centre_y_m)

    def choice(self, world: KitchenWorld) -> str | None:
        """Return the choice whose object the gripper has come near to."""
        start = start_of(world, PickState)
        objects = {choice: self.object_of(start, choice) for choice in start.choices}
        return approached(
            world, {choice: world.data.body(name).xpos for choice, name in objects.items()}
        )

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the right object hangs above the counter."""
        name = self._right_object(world)
        return is_lifted(world, name, OBJECTS[name].height_m)

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the right object."""
        name = self._right_object(world)
        return grasp_upright(world, name, OBJECTS[name].height_m)

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift it straight up."""
        return lift(world)

    def _right_object(self, world: KitchenWorld) -> str:
        start = start_of(world, PickState)
        return self.object_of(start, start.goal)
