"""What the robot is choosing, told from the simulator's state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.world import KitchenWorld

NEAR_M = 0.09
"""The gripper chooses a target when it comes this near to it in the plane, less than half of what
lies between two targets."""


def approached(world: KitchenWorld, targets_m: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the target that the gripper has come near to, or None.

    targets_m: name -> (2,) or (3,), position in the world. Heights are not looked at.
    """
    gripper_m = world.data.site(fetch.PREFIX + fetch.GRIP_SITE).xpos[:2]
    distances_m = {
        name: float(np.linalg.norm(np.asarray(target)[:2] - gripper_m))
        for name, target in targets_m.items()
    }
    nearest = min(distances_m, key=distances_m.__getitem__)
    return nearest if distances_m[nearest] < NEAR_M else None
