"""Scripted demonstrators. Each looks at the simulator's state afresh at every tick and keeps no state of its own,
so it recovers from any disturbance, and can say at any state that a policy got into what it would do there.
"""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.env import SPEC, KitchenEnv
from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M, OBJECTS

STANDOFF_M = 0.92
"""How far before the base's centre the thing to be grasped shall lie, so that the arm reaches it with ease."""
MAX_STEP_M = 0.04
RETREAT_M = 0.11
"""The gripper lines up this far short of its goal and only then moves in."""
GRASP_HEIGHT_M = 0.072
LIFT_HEIGHT_M = 0.12
PULLED_OUT_M = 0.17
"""Drawers are pulled until they are this far open."""


class Expert:
    """Drives up, lines up, grasps, and lifts or pulls: `action()` is what it would do in the present state."""

    def __init__(self, env: KitchenEnv):
        self.env = env

    def action(self) -> np.ndarray:
        """(A,) float32 in the spec's units, within its limits."""
        goal_m = self._goal()
        gripper_m, rotation = self.env.controller.gripper_pose()
        holding = self._closed_on_goal(goal_m, gripper_m)
        if holding and self._grasped():
            translation_m, base = self._carry(gripper_m)
        else:
            base = self._drive_to(goal_m)
            translation_m = self._reach(goal_m, gripper_m)
        limits_m = SPEC.actions[0]
        return np.concatenate(
            [
                np.clip(translation_m, limits_m.low, limits_m.high),
                np.clip(0.5 * rotation.inverse().log(), -0.1, 0.1),
                [0.0 if holding else 1.0],
                base,
                [float(self.env.success)],
            ]
        ).astype(np.float32)

    def _goal(self) -> np.ndarray:
        """(3,) m in the base frame: where the grip shall close."""
        env = self.env
        if env.task.name == "pick":
            x_m, y_m, _ = env.data.body(env.goal).xpos
            return env.controller.to_base_frame(np.array([x_m, y_m, self._grasp_z()]))
        handle = env.data.site(f"handle_{env.goal}").xpos
        return env.controller.to_base_frame(handle)

    def _grasp_z(self) -> float:
        """The grasp's height, which rises with the object once that is lifted."""
        env = self.env
        half_height_m = OBJECTS[env.goal].height_m / 2
        return float(env.data.body(env.goal).xpos[2]) - half_height_m + GRASP_HEIGHT_M

    def _closed_on_goal(self, goal_m: np.ndarray, gripper_m: np.ndarray) -> bool:
        """Close when the goal lies between the fingers; once closing, stay so while it is near."""
        away_m = np.abs(goal_m - gripper_m)
        closing = self.env.controller.gripper_opening() < 0.95
        tolerance_m = np.array([0.035, 0.03, 0.05]) if closing else np.array([0.015, 0.015, 0.025])
        return bool((away_m < tolerance_m).all())

    def _grasped(self) -> bool:
        """Both fingers touch the goal."""
        env = self.env
        name = env.goal if env.task.name == "pick" else f"drawer_{env.goal}"
        goal_body = env.model.body(name).id
        fingers = {
            env.model.body(fetch.PREFIX + joint.replace("_joint", "_link")).id
            for joint in fetch.FINGER_JOINTS
        }
        touching = set()
        for pair in env.data.contact.geom:
            bodies = {int(env.model.geom_bodyid[geom]) for geom in pair}
            if goal_body in bodies:
                touching |= bodies & fingers
        return touching == fingers

    def _drive_to(self, goal_m: np.ndarray) -> np.ndarray:
        bearing_rad = np.arctan2(goal_m[1], goal_m[0])
        forward_m_s = np.clip(1.5 * (goal_m[0] - STANDOFF_M), -0.25, 0.35)
        return np.array([forward_m_s, np.clip(2.0 * bearing_rad, -0.6, 0.6)])

    def _reach(self, goal_m: np.ndarray, gripper_m: np.ndarray) -> np.ndarray:
        """Line up beside and above first, then move in: the nearer to the line, the further in (a funnel)."""
        off_line_m = float(np.hypot(*(goal_m - gripper_m)[1:]))
        entered = np.clip(1.0 - (off_line_m - 0.012) / 0.03, 0.0, 1.0)
        target_m = goal_m - np.array([RETREAT_M * (1.0 - entered), 0.0, 0.0])
        if goal_m[0] > STANDOFF_M + 0.15:  # still driving: only take the height
            target_m = np.array([0.79, 0.0, max(goal_m[2], 0.80)])
        target_m[0] = max(target_m[0], 0.77)
        step_m: np.ndarray = 0.7 * (target_m - gripper_m)
        return step_m * min(1.0, MAX_STEP_M / max(float(np.linalg.norm(step_m)), 1e-9))

    def _carry(self, gripper_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What to do with it once held: lift an object straight up, pull a drawer by driving backwards."""
        if self.env.task.name == "pick":
            rise_m = COUNTER_TOP_Z_M + GRASP_HEIGHT_M + LIFT_HEIGHT_M - gripper_m[2]
            return np.array([0.0, 0.0, np.clip(0.7 * rise_m, -MAX_STEP_M, MAX_STEP_M)]), np.zeros(2)
        pulled_m = float(self.env.data.joint(f"drawer_{self.env.goal}").qpos[0])
        backwards_m_s = np.clip(2.0 * (pulled_m - PULLED_OUT_M), -0.2, 0.0)
        return np.zeros(3), np.array([backwards_m_s, 0.0])
