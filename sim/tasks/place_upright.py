"""Place a lying object upright (RT-1)."""

from __future__ import annotations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld, robot_touches
from ttm.sim.tasks.motions import (
    GRASP_HEIGHT_M,
    STANDOFF_DOWN_M,
    WAITING_DOWN_M,
    base_facing,
    drive_to,
    gripper_start,
    lay_objects,
    step_to,
)
from ttm.sim.tasks.task import Grasp, Motion, Task

UPRIGHT_RAD, STANDING_M = 0.14, 0.006
HEADING_RAD = np.radians(75)
CLEARANCE_M = 0.05
OVER_M = 0.13


class PlaceUpright(Task):
    template = "place the {} upright"
    goals = tuple(OBJECTS)
    max_ticks = 150

    def sample(self, rng: np.random.Generator) -> InitialState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        goal = chosen[1]
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        heading = base[2] + rng.uniform(-HEADING_RAD, HEADING_RAD)
        rot = SO3.from_z_radians(heading) @ SO3.from_y_radians(np.pi / 2)
        x, y, _ = placed[goal]
        placed[goal] = (x - 0.03, y, COUNTER_TOP_Z_M + OBJECTS[goal].radius_m + 0.001, *rot.wxyz)
        return InitialState(goal, placed, base, gripper_start(rng))

    def _stands(self, world):
        up, bottom_m = self._axis(world)
        return (
            np.arccos(min(up[2], 1.0)) < UPRIGHT_RAD and bottom_m[2] - COUNTER_TOP_Z_M < STANDING_M
        )

    def _axis(self, world):
        body = world.data.body(world.start.goal)
        up = body.xmat.reshape(3, 3)[:, 2]
        return up, body.xpos - up * OBJECTS[world.start.goal].height_m / 2

    def predicate(self, world: KitchenWorld) -> bool:
        return bool(self._stands(world) and not robot_touches(world, world.start.goal))

    def is_lost(self, world):
        return bool(self._axis(world)[1][2] < COUNTER_TOP_Z_M - 0.1)

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        if self._stands(world):
            return None
        up, bottom_m = self._axis(world)
        robot = world.controller
        bm = robot.to_base_frame(bottom_m)
        axis = robot.to_base_frame(bottom_m + up) - bm
        heading_rad, tilt_rad = np.arctan2(axis[1], axis[0]), np.arccos(np.clip(axis[2], -1, 1))
        rotation = SO3.from_z_radians(heading_rad) @ SO3.from_y_radians(tilt_rad)
        return Grasp(bottom_m + GRASP_HEIGHT_M * up, world.start.goal, rotation=rotation)

    def carry(self, world: KitchenWorld) -> Motion:
        if self._stands(world):
            return Motion(translation_m=np.array([-0.02, 0.0, 0.0]))
        up, bottom_m = self._axis(world)
        robot = world.controller
        gripper_m, rotation = robot.gripper_pose()
        bm = robot.to_base_frame(bottom_m)
        axis = robot.to_base_frame(bottom_m + up) - bm
        ahead, _, above = rotation.inverse().apply(axis)
        wanted = SO3.from_y_radians(-np.arctan2(ahead, above))
        upright = np.arccos(np.clip(axis[2], -1, 1)) < UPRIGHT_RAD / 2
        target_m = np.array([WAITING_DOWN_M[0], 0.0, gripper_m[2] + COUNTER_TOP_Z_M - bm[2]])
        if not upright:
            target_m[2] = COUNTER_TOP_Z_M + GRASP_HEIGHT_M + CLEARANCE_M
        grasp_m = robot.base_pose()
        return Motion(step_to(target_m, gripper_m), np.zeros(2), wanted)
