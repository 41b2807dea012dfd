"""What several tasks share in drawing their initial states: objects on the counter, robot poses."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.controller import READY_POSITION_M
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M, OBJECTS

OBJECT_SPACING_M = 0.20


def park_objects() -> dict[str, tuple[float, float, float]]:
    """Return positions of all objects behind the robot, out of sight of its cameras."""
    return {
        name: (-4.0, -2.0 + 0.5 * i, item.height_m / 2)
        for i, (name, item) in enumerate(OBJECTS.items())
    }


def lay_objects(
    rng: np.random.Generator, centre_y_m: float
) -> tuple[list[str], dict[str, tuple[float, float, float]]]:
    """Lay three of the objects side by side on the counter, in random order.

    Returns their names, from right to left, and the positions of all objects, m in the world.
    """
    chosen = [str(name) for name in rng.permutation(list(OBJECTS))[:3]]
    placed = park_objects()
    for slot, name in enumerate(chosen):
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.08, 0.18)
        y_m = centre_y_m + OBJECT_SPACING_M * (slot - 1) + rng.uniform(-0.02, 0.02)
        placed[name] = (x_m, y_m, COUNTER_TOP_Z_M + OBJECTS[name].height_m / 2 + 0.001)
    return chosen, placed


def base_facing(rng: np.random.Generator, x_m: float, y_m: float) -> np.ndarray:
    """Draw a base pose (3,) from which the robot sees the point (x_m, y_m).

    The robot stands 1.2 to 1.55 m in front of the point, up to 0.25 m to one side, and faces it up
    to an error of 0.15 rad.
    """
    base_x_m = x_m - rng.uniform(1.2, 1.55)
    base_y_m = y_m + rng.uniform(-0.25, 0.25)
    yaw = np.arctan2(y_m - base_y_m, x_m - base_x_m) + rng.uniform(-0.15, 0.15)
    return np.array([base_x_m, base_y_m, yaw])


def gripper_start(rng: np.random.Generator) -> np.ndarray:
    """Draw a gripper position (3,) near the one where it waits, m in the base frame."""
    return np.array(READY_POSITION_M) + rng.uniform((0.0, -0.04, -0.03), (0.04, 0.04, 0.04))
