"""The scripted demonstrator of all tasks of the kitchen.

It looks at the simulator's state afresh at every tick and keeps no state of its own, so that it
recovers from any disturbance, and can say in any state that a policy reached what it would do there.
"""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.contacts import both_fingers_touch
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.approach import drive_to, reach
from ttm.sim.tasks.task import Motion, Task


class KitchenExpert:
    """Drives up, lines up and grasps, and then does what the task says.

    The task says what to grasp (`Task.grasp`) and what to do once it is held (`Task.carry`).
    """

    def __init__(self, world: KitchenWorld, task: Task):
        self.world, self.task = world, task

    def action(self) -> np.ndarray:
        """Return the action in the present state, (A,) float32, within the limits of the spec.

        As long as the task holds the robot, that is to stand still, with the gripper as it is.
        """
        if not self.task.go(self.world):
            return self.world.start.stand_still()
        _, rotation = self.world.controller.gripper_pose()
        motion, closed = self._motion()
        limits_m = SPEC.actions[0]
        return np.concatenate(
            [
                np.clip(motion.translation_m, limits_m.low, limits_m.high),
                np.clip(0.5 * rotation.inverse().log(), -0.1, 0.1),
                [0.0 if closed else 1.0],
                motion.base,
                [float(self.world.success)],
            ]
        ).astype(np.float32)

    def _motion(self) -> tuple[Motion, bool]:
        """Return how to move, and whether to close the gripper."""
        grasp = self.task.grasp(self.world)
        if grasp is None:
            return self.task.carry(self.world), False
        grasp_m = self.world.controller.to_base_frame(grasp.point_m)
        gripper_m, _ = self.world.controller.gripper_pose()
        closed = self._closed_on(grasp_m, gripper_m)
        if closed and both_fingers_touch(self.world, grasp.body):
            return self.task.carry(self.world), closed
        step_m = reach(grasp_m, gripper_m, grasp.waiting_z_m)
        return Motion(step_m, drive_to(grasp_m)), closed

    def _closed_on(self, grasp_m: np.ndarray, gripper_m: np.ndarray) -> bool:
        """Return whether to close: when the grasp lies between the fingers, and as long as it is near."""
        away_m = np.abs(grasp_m - gripper_m)
        closing = self.world.controller.gripper_opening() < 0.95
        tolerance_m = np.array([0.035, 0.03, 0.05]) if closing else np.array([0.015, 0.015, 0.025])
        return bool((away_m < tolerance_m).all())
