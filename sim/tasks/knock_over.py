"""Knock over the named one of the objects on the counter (RT-1)."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M, OBJECTS
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.motions import WAITING_M, base_facing, drive_to, gripper_start, is_far, lay_objects, step_to
from ttm.sim.tasks.task import Motion, Task

LIES = 0.35
"""cos"""
PUSH_HEIGHT = 0.8
PUSH_M, BEFORE_M = 0.10, 0.10


class KnockOver(Task):
    template = "knock the {} over"
    goals = tuple(OBJECTS)

    def sample(self, rng: np.random.Generator) -> InitialState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        return InitialState(chosen[rng.integers(3)], placed, base, gripper_start(rng))

    def predicate(self, world: KitchenWorld) -> bool:
        body = world.data.body(world.start.goal)
        lies = abs(body.xmat[8]) < LIES
        return bool(lies and 0 < body.xpos[2] - COUNTER_TOP_Z_M < 0.1)

    def is_lost(self, world):
        return bool(world.data.body(world.start.goal).xpos[2] < COUNTER_TOP_Z_M - 0.05)

    def grasp(self, world: KitchenWorld):
        return None

    def carry(self, world: KitchenWorld) -> Motion:
        robot, gripper_m = world.controller, world.controller.gripper_pose()[0]
        if self.predicate(world):
            return Motion(translation_m=np.array([-0.02, 0, 0.02]), closed=True)
        body = world.data.body(world.start.goal)
        up = body.xmat.reshape(3, 3)[:, 2]
        h = OBJECTS[world.start.goal].height_m
        at_m = robot.to_base_frame(body.xpos + (PUSH_HEIGHT-0.5) * h * up)
        drive = drive_to(at_m)
        aligned = np.abs(at_m - gripper_m)[1:].max() < 0.02
        target_m = at_m + np.array([PUSH_M if aligned else -BEFORE_M, 0, 0])
        if is_far(at_m):
            target_m = np.array([*WAITING_M[:2], max(at_m[2],WAITING_M[2])])
        return Motion(step_to(target_m, gripper_m), drive, closed=True)
