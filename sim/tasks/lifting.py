"""Lifting a body that stands on the counter: what several tasks share of predicate and expert."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.task import Grasp, Motion

LIFT_M = 0.06
"""An object counts as picked up when it hangs this far above where it stood on the counter."""
GRASP_HEIGHT_M = 0.072
"""The expert's fingers close this far above the bottom of an object."""
LIFT_HEIGHT_M = 0.12
"""The expert lifts an object this far."""
MAX_LIFT_STEP_M = 0.04
"""The expert lifts no faster than this in one tick."""


def is_lifted(world: KitchenWorld, body: str, height_m: float) -> bool:
    """Return whether the body, which is `height_m` tall, hangs above the counter."""
    standing_z_m = COUNTER_TOP_Z_M + height_m / 2
    return bool(world.data.body(body).xpos[2] > standing_z_m + LIFT_M)


def grasp_upright(world: KitchenWorld, body: str, height_m: float) -> Grasp:
    """Hold the body at a height that rises with it once it is lifted."""
    x_m, y_m, z_m = world.data.body(body).xpos
    bottom_z_m = float(z_m) - height_m / 2
    return Grasp(np.array([x_m, y_m, bottom_z_m + GRASP_HEIGHT_M]), body)


def lift(world: KitchenWorld) -> Motion:
    """Lift what is held straight up."""
    gripper_m, _ = world.controller.gripper_pose()
    rise_m = COUNTER_TOP_Z_M + GRASP_HEIGHT_M + LIFT_HEIGHT_M - gripper_m[2]
    step_m = np.clip(0.7 * rise_m, -MAX_LIFT_STEP_M, MAX_LIFT_STEP_M)
    return Motion(translation_m=np.array([0.0, 0.0, step_m]))
