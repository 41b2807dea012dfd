"""Knock over the named one of the objects that stand on the counter (RT-1)."""

from __future__ import annotations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.world import InitialState, KitchenWorld, both_fingers_touch
from ttm.sim.tasks.groups import GroupTask, above_rest_m, lay_household
from ttm.sim.tasks.motions import WAITING_M, drive_to, is_far, step_to
from ttm.sim.tasks.task import Motion

LYING_RAD, RISE_M = np.radians(70), 0.015
"""An object lies if it leans by more, and is no higher above its rest. One that leans on another does not."""
BELOW_TOP_M, LEAST_M = 0.03, 0.065
"""The expert pushes an object so far below its top, but no nearer to the counter than that."""
PUSH_M, IN_LINE_M = 0.10, (0.02, 0.04)
"""It lines up so far before the object, to the side and in height, and then pushes as far beyond."""
EDGEWISE = SO3.from_x_radians(np.pi / 2)
"""The gripper pushes with one finger above the other, so that they do not close around what it pushes."""


class KnockOver(GroupTask):
    """The robot pushes the object over with closed fingers. Others may be touched."""

    template = "knock the {} over"
    paraphrases = ("tip the {} over", "make the {} fall over")
    goals = tuple(name for name, item in HOUSEHOLD.items() if item.topples)

    def sample(self, rng: np.random.Generator) -> InitialState:
        return lay_household(rng, str(rng.choice(self.goals)))

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the object lies on the counter."""
        goal = world.start.goal
        leans = abs(world.data.body(goal).xmat[8]) < np.cos(LYING_RAD)
        low = abs(above_rest_m(world, goal)) < RISE_M
        return bool(leans) and low and not both_fingers_touch(world, goal)

    def grasp(self, world: KitchenWorld) -> None:
        """Hold nothing."""

    def carry(self, world: KitchenWorld) -> Motion:
        """Line up before the upper part of the object, and push; back off once it lies."""
        if self.predicate(world):
            return Motion(np.array([-0.02, 0.0, 0.02]), rotation=EDGEWISE, closed=True)
        robot, gripper_m = world.controller, world.controller.gripper_pose()[0]
        body, half_m = world.data.body(world.start.goal), HOUSEHOLD[world.start.goal].height_m / 2
        above_m = max(half_m - BELOW_TOP_M, LEAST_M - half_m)
        point_m = robot.to_base_frame(body.xpos + above_m * body.xmat.reshape(3, 3)[:, 2])
        in_line = (np.abs(point_m - gripper_m)[1:] < IN_LINE_M).all()
        target_m = point_m + np.array([PUSH_M if in_line else -PUSH_M, 0.0, 0.0])
        if is_far(point_m):
            target_m = np.array([*WAITING_M[:2], max(point_m[2], WAITING_M[2])])
        return Motion(step_to(target_m, gripper_m), drive_to(point_m), EDGEWISE, closed=True)
