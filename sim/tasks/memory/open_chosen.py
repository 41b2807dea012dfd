"""Opening one of three drawers: what `count` and `search` share."""

from __future__ import annotations

from dataclasses import replace

from ttm.sim.kitchen.scene import DRAWER_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.cue import CueTask
from ttm.sim.tasks.pulling import OPEN_M, grasp_handle, pull, pulled_m
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
