"""The scripted demonstrator of all tasks of the kitchen.

It looks at the simulator's state afresh at every tick and keeps no state of its own, so that it
recovers from any disturbance, and can say in any state that a policy reached what it would do there.
"""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.task import Motion, Task

STANDOFF_M = 0.92
"""The robot drives until the grasp lies this far ahead of the base's centre, easy for the arm to reach."""
MAX_STEP_M = 0.04
"""The gripper moves no further than this in one tick."""
RETREAT_M = 0.11
"""The gripper lines up this far short of the grasp before it moves in."""


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
            return self._stand_still()
        grasp = self.task.grasp(self.world)
        controller = self.world.controller
        grasp_m = controller.to_base_frame(grasp.point_m)
        gripper_m, rotation = controller.gripper_pose()
        closed = self._closed_on(grasp_m, gripper_m)
        if closed and self._touches(grasp.body):
            motion = self.task.carry(self.world)
        else:
            motion = Motion(_reach(grasp_m, gripper_m), _drive_to(grasp_m))
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

    def _stand_still(self) -> np.ndarray:
        action = np.zeros(SPEC.action_size, dtype=np.float32)
        action[SPEC.action_slices["gripper"]] = self.world.start.opening
        return action

    def _closed_on(self, grasp_m: np.ndarray, gripper_m: np.ndarray) -> bool:
        """Return whether to close: when the grasp lies between the fingers, and as long as it is near."""
        away_m = np.abs(grasp_m - gripper_m)
        closing = self.world.controller.gripper_opening() < 0.95
        tolerance_m = np.array([0.035, 0.03, 0.05]) if closing else np.array([0.015, 0.015, 0.025])
        return bool((away_m < tolerance_m).all())

    def _touches(self, body: str) -> bool:
        """Return whether both fingers touch the body."""
        model = self.world.model
        held = model.body(body).id
        fingers = {
            model.body(fetch.PREFIX + joint.replace("_joint", "_link")).id
            for joint in fetch.FINGER_JOINTS
        }
        touching = set()
        for pair in self.world.data.contact.geom:
            bodies = {int(model.geom_bodyid[geom]) for geom in pair}
            if held in bodies:
                touching |= bodies & fingers
        return touching == fingers


def _drive_to(grasp_m: np.ndarray) -> np.ndarray:
    bearing_rad = np.arctan2(grasp_m[1], grasp_m[0])
    forward_m_s = np.clip(1.5 * (grasp_m[0] - STANDOFF_M), -0.25, 0.35)
    return np.array([forward_m_s, np.clip(2.0 * bearing_rad, -0.6, 0.6)])


def _reach(grasp_m: np.ndarray, gripper_m: np.ndarray) -> np.ndarray:
    """Return a step (3,) m that lines the gripper up beside the grasp and then moves it in.

    The nearer the gripper is to the line through the grasp, the further it moves in, as in a funnel.
    """
    off_line_m = float(np.hypot(*(grasp_m - gripper_m)[1:]))
    entered = np.clip(1.0 - (off_line_m - 0.012) / 0.03, 0.0, 1.0)
    target_m = grasp_m - np.array([RETREAT_M * (1.0 - entered), 0.0, 0.0])
    if grasp_m[0] > STANDOFF_M + 0.15:  # while the robot still drives, take only the height
        target_m = np.array([0.79, 0.0, max(grasp_m[2], 0.80)])
    target_m[0] = max(target_m[0], 0.77)
    step_m: np.ndarray = 0.7 * (target_m - gripper_m)
    return step_m * min(1.0, MAX_STEP_M / max(float(np.linalg.norm(step_m)), 1e-9))
