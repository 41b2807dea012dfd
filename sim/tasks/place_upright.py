"""Place the named object, which lies on the counter, upright (RT-1)."""

from __future__ import annotations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld, robot_touches
from ttm.sim.tasks.groups import LYING, GroupTask, above_rest_m, lay_household
from ttm.sim.tasks.motions import GRASP_HEIGHT_M, STANDOFF_DOWN_M, step_to
from ttm.sim.tasks.task import Grasp, Motion

UPRIGHT_RAD, STANDING_M = 0.14, 0.006
"""An object stands upright if it leans less, and is less above the counter."""
TURNED_RAD = 1.3
"""It begins with its top turned no further than this from straight away from the robot."""
PORTION = 0.6
"""The expert holds it at this portion of its height, but no higher than other objects."""
PLACE_X_M, PLACE_WITHIN_M = COUNTER_FRONT_X_M + 0.13, 0.06
"""Where it is set down: further back the forearm would meet the counter."""
NEARLY_RAD = 0.2
"""It is set down as soon as it leans less: let go of, it rights itself."""
CARRYING_M, UP_M = 0.05, 0.84
"""Its height above the counter until then, and how far ahead of the base the gripper is in the end."""


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
        low = abs(above_rest_m(world, world.start.goal)) < STANDING_M
        return low and self._leans_less(world) and not robot_touches(world, world.start.goal)

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        """Hold it from above, so that the gripper points ahead once it stands."""
        if self._is_down(world):
            return None
        goal, (bottom_m, up) = world.start.goal, self._axis(world)
        height_m = min(GRASP_HEIGHT_M, PORTION * HOUSEHOLD[goal].height_m)
        heading_rad = np.arctan2(up[1], up[0]) - world.controller.base_pose()[2]
        lean = SO3.from_y_radians(np.arccos(np.clip(up[2], -1, 1)))
        rotation = SO3.from_z_radians(heading_rad) @ lean
        return Grasp(bottom_m + height_m * up, goal, rotation=rotation)

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift and turn it up, lower it, let go, and back off."""
        if self._is_down(world):
            return Motion(np.array([-0.02, 0.0, 0.0]))
        (bottom_m, up), (gripper_m, rotation) = self._axis(world), world.controller.gripper_pose()
        to_gripper = rotation.inverse() @ SO3.from_z_radians(-world.controller.base_pose()[2])
        ahead, _, above = to_gripper.apply(up)  # it swings in this plane between the fingers
        to_place_m = PLACE_X_M - bottom_m[0]
        ready = self._leans_less(world, NEARLY_RAD) and abs(to_place_m) < PLACE_WITHIN_M
        rise_m = COUNTER_TOP_Z_M + (0.0 if ready else CARRYING_M) - bottom_m[2]
        ahead_m = STANDOFF_DOWN_M + (UP_M - STANDOFF_DOWN_M) * max(up[2], 0.0)
        step_m = step_to(np.array([ahead_m, 0.0, gripper_m[2] + rise_m]), gripper_m)
        drive = np.array([np.clip(2.0 * to_place_m, -0.3, 0.3), 0.0])
        return Motion(step_m, drive, SO3.from_y_radians(-np.arctan2(ahead, above)))

    def _axis(self, world: KitchenWorld) -> tuple[np.ndarray, np.ndarray]:
        """Return the middle of the object's bottom and its upward axis, (3,) each, in the world."""
        body = world.data.body(world.start.goal)
        up = body.xmat.reshape(3, 3)[:, 2]
        return body.xpos - HOUSEHOLD[world.start.goal].height_m / 2 * up, up

    def _leans_less(self, world: KitchenWorld, than_rad: float = UPRIGHT_RAD) -> bool:
        return bool(self._axis(world)[1][2] > np.cos(than_rad))

    def _is_down(self, world: KitchenWorld) -> bool:
        """Return whether to let go: it stands, or it is held so low that the gripper meets the counter."""
        low = above_rest_m(world, world.start.goal) < STANDING_M
        return self._leans_less(world, NEARLY_RAD) and (low or robot_touches(world, "counter"))
