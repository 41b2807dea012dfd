"""Driving up to a point and reaching for it: what the expert and the tasks' own motions share.

All points are (3,) in m in the base frame.
"""

from __future__ import annotations

import numpy as np

STANDOFF_M = 0.92
"""The robot drives until the grasp lies this far ahead of the base's centre, easy for the arm to reach."""
MAX_STEP_M = 0.04
"""The gripper moves no further than this in one tick."""
RETREAT_M = 0.11
"""The gripper lines up this far short of the grasp before it moves in."""
WAITING_M = (0.79, 0.0, 0.80)
"""Where the gripper is kept while the robot drives; the last value is the lowest height."""


def drive_to(point_m: np.ndarray) -> np.ndarray:
    """Return the base's command (2,), m/s and rad/s, that brings the point before the arm."""
    bearing_rad = np.arctan2(point_m[1], point_m[0])
    forward_m_s = np.clip(1.5 * (point_m[0] - STANDOFF_M), -0.25, 0.35)
    return np.array([forward_m_s, np.clip(2.0 * bearing_rad, -0.6, 0.6)])


def is_far(point_m: np.ndarray) -> bool:
    """Return whether the robot must still drive before the arm can reach the point."""
    return bool(point_m[0] > STANDOFF_M + 0.15)


def step_to(target_m: np.ndarray, gripper_m: np.ndarray) -> np.ndarray:
    """Return a step (3,) m of the gripper towards the target, at most `MAX_STEP_M` long."""
    step_m: np.ndarray = 0.7 * (target_m - gripper_m)
    return step_m * min(1.0, MAX_STEP_M / max(float(np.linalg.norm(step_m)), 1e-9))


def reach(
    grasp_m: np.ndarray, gripper_m: np.ndarray, waiting_z_m: float | None = None
) -> np.ndarray:
    """Return a step (3,) m that lines the gripper up beside the grasp and then moves it in.

    The nearer the gripper is to the line through the grasp, the further it moves in, as in a funnel.
    waiting_z_m: see `ttm.sim.tasks.task.Grasp`.
    """
    off_line_m = float(np.hypot(*(grasp_m - gripper_m)[1:]))
    entered = np.clip(1.0 - (off_line_m - 0.012) / 0.03, 0.0, 1.0)
    target_m = grasp_m - np.array([RETREAT_M * (1.0 - entered), 0.0, 0.0])
    if is_far(grasp_m):  # while the robot still drives, take only the height
        x_m, y_m, z_m = WAITING_M
        z_m = max(grasp_m[2], z_m) if waiting_z_m is None else waiting_z_m
        target_m = np.array([x_m, y_m, z_m])
    target_m[0] = max(target_m[0], 0.77)
    return step_to(target_m, gripper_m)
