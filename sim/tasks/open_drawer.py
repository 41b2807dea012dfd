"""Open the named one of the chest's three drawers."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import CHEST_POSITION_M, DRAWER_Z_M, HANDLE_X_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.motions import (
    OPEN_M,
    base_facing,
    grasp_handle,
    gripper_start,
    lay_objects,
    pull,
    pulled_m,
)
from ttm.sim.tasks.task import Grasp, Motion, Task


class OpenDrawer(Task):
    """The robot stands in front of the chest and must pull out the named drawer."""

    template = "open the {} drawer"
    goals = tuple(DRAWER_Z_M)

    def sample(self, rng: np.random.Generator) -> InitialState:
        """See `Task.sample`."""
        _, placed = lay_objects(rng, rng.uniform(0.0, 0.8))
        base = base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1])
        return InitialState(self.goals[rng.integers(3)], placed, base, gripper_start(rng))

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the named drawer is open."""
        return pulled_m(world, world.start.goal) > OPEN_M

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the drawer by its handle."""
        return grasp_handle(world, world.start.goal)

    def carry(self, world: KitchenWorld) -> Motion:
        """Pull the drawer by driving backwards."""
        return pull(world, world.start.goal)
