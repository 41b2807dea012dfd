"""Place the named object, which lies on the counter, upright (RT-1)."""

from __future__ import annotations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld, robot_touches
from ttm.sim.tasks.groups import LYING, GroupTask, lay_household
from ttm.sim.tasks.motions import GRASP_HEIGHT_M, STANDOFF_DOWN_M, step_to
from ttm.sim.tasks.task import Grasp, Motion

UPRIGHT_RAD = 0.14
"""An object stands upright if it leans less than this,"""
STANDING_M = 0.006
"""and its bottom is less than this above the counter."""
TURNED_RAD = 1.3
"""It begins with its top turned no further than this from straight away from the robot."""
GRASP_PORTION = 0.6
"""The expert holds an object in this portion of its height, but no higher than others."""
UP_M = 0.84
"""How far ahead of the base the gripper is in the end."""
PLACE_X_M, PLACE_WITHIN_M = COUNTER_FRONT_X_M + 0.14, 0.05
"""Where the object is set down: further back the forearm would meet the counter."""
CARRYING_M = 0.05
"""As the object is turned its bottom is this far above the counter."""


class PlaceUpright(GroupTask):
    """The robot grasps the object from above, lifts it, turns it up and sets it down."""

    template = "place the {} upright"
    paraphrases = ("stand the {} up", "set the {} on its base")
    goals = tuple(name for name, item in HOUSEHOLD.items() if item.topples)

    def sample(self, rng: np.random.Generator) -> InitialState:
        goal = str(rng.choice(self.goals))
        turn = SO3.from_z_radians(rng.uniform(-TURNED_RAD, TURNED_RAD))
        return lay_household(rng, goal, {goal: turn @ LYING})

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the object stands on the counter and the robot has let go of it."""
        return self._stands(world) and not robot_touches(world, world.start.goal)

    def is_lost(self, world: KitchenWorld) -> bool:
        """Return whether the object has fallen from the counter."""
        return bool(world.data.body(world.start.goal).xpos[2] < COUNTER_TOP_Z_M)

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        """Hold it from above, so that the gripper points ahead once it stands."""
        if self._stands(world):
            return None
        goal, (bottom_m, up) = world.start.goal, self._axis(world)
        height_m = min(GRASP_HEIGHT_M, GRASP_PORTION * HOUSEHOLD[goal].height_m)
        heading_rad = np.arctan2(up[1], up[0]) - world.controller.base_pose()[2]
        lean = SO3.from_y_radians(np.arccos(np.clip(up[2], -1, 1)))
        rotation = SO3.from_z_radians(heading_rad) @ lean
        return Grasp(bottom_m + height_m * up, goal, rotation=rotation)

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift and turn it up, lower it, let go, and back off."""
        if self._stands(world):
            return Motion(translation_m=np.array([-0.02, 0.0, 0.0]))
        bottom_m, up = self._axis(world)
        gripper_m, rotation = world.controller.gripper_pose()
        # How the object leans in the plane in which the fingers let it swing.
        ahead, _, above = (
            rotation.inverse() @ SO3.from_z_radians(-world.controller.base_pose()[2])
        ).apply(up)
        wanted = SO3.from_y_radians(-np.arctan2(ahead, above))
        to_place_m = PLACE_X_M - bottom_m[0]
        ready = np.arccos(min(up[2], 1.0)) < UPRIGHT_RAD / 2 and abs(to_place_m) < PLACE_WITHIN_M
        rise_m = COUNTER_TOP_Z_M + (0.0 if ready else CARRYING_M) - bottom_m[2]
        ahead_m = STANDOFF_DOWN_M + (UP_M - STANDOFF_DOWN_M) * max(up[2], 0.0)
        step_m = step_to(np.array([ahead_m, 0.0, gripper_m[2] + rise_m]), gripper_m)
        return Motion(step_m, np.array([np.clip(2.0 * to_place_m, -0.3, 0.3), 0.0]), wanted)

    def _axis(self, world: KitchenWorld) -> tuple[np.ndarray, np.ndarray]:
        """Return the middle of the object's bottom and its upward axis, (3,) each, in the world."""
        body = world.data.body(world.start.goal)
        up = body.xmat.reshape(3, 3)[:, 2]
        return body.xpos - HOUSEHOLD[world.start.goal].height_m / 2 * up, up

    def _stands(self, world: KitchenWorld) -> bool:
        bottom_m, up = self._axis(world)
        low = abs(bottom_m[2] - COUNTER_TOP_Z_M) < STANDING_M
        return bool(low and np.arccos(np.clip(up[2], -1, 1)) < UPRIGHT_RAD)
