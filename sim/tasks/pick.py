"""Pick up the named one of three objects on the counter."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, OBJECTS
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.motions import (
    base_facing,
    grasp_upright,
    gripper_start,
    is_lifted,
    lay_objects,
    lift,
)
from ttm.sim.tasks.task import Grasp, Motion, Task


class Pick(Task):
    """Three of the objects stand on the counter. The robot must lift the named one."""

    template = "pick up the {}"
    goals = tuple(OBJECTS)

    def sample(self, rng: np.random.Generator) -> InitialState:
        """See `Task.sample`."""
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        return InitialState(chosen[rng.integers(3)], placed, base, gripper_start(rng))

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the named object hangs above the counter."""
        goal = world.start.goal
        return is_lifted(world, goal, OBJECTS[goal].height_m)

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the object at a height that rises with the object once it is lifted."""
        goal = world.start.goal
        return grasp_upright(world, goal, OBJECTS[goal].height_m)

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift it straight up."""
        return lift(world)
