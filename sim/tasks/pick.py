"""Pick up the named one of three objects on the counter."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M, OBJECTS
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.placement import base_facing, gripper_start, lay_objects
from ttm.sim.tasks.task import Grasp, Motion, Task

LIFT_M = 0.06
"""An object counts as picked up when it hangs this far above where it stood on the counter."""
GRASP_HEIGHT_M = 0.072
"""The expert's fingers close this far above the bottom of an object."""
LIFT_HEIGHT_M = 0.12
"""The expert lifts an object this far."""
MAX_LIFT_STEP_M = 0.04
"""The expert lifts no faster than this in one tick."""


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
        standing_z_m = COUNTER_TOP_Z_M + OBJECTS[goal].height_m / 2
        return bool(world.data.body(goal).xpos[2] > standing_z_m + LIFT_M)

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the object at a height that rises with the object once it is lifted."""
        goal = world.start.goal
        x_m, y_m, z_m = world.data.body(goal).xpos
        bottom_z_m = float(z_m) - OBJECTS[goal].height_m / 2
        return Grasp(np.array([x_m, y_m, bottom_z_m + GRASP_HEIGHT_M]), goal)

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift it straight up."""
        gripper_m, _ = world.controller.gripper_pose()
        rise_m = COUNTER_TOP_Z_M + GRASP_HEIGHT_M + LIFT_HEIGHT_M - gripper_m[2]
        step_m = np.clip(0.7 * rise_m, -MAX_LIFT_STEP_M, MAX_LIFT_STEP_M)
        return Motion(translation_m=np.array([0.0, 0.0, step_m]))
