"""Open the named one of the chest's three drawers."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import CHEST_POSITION_M, DRAWER_Z_M, HANDLE_X_M
from ttm.sim.kitchen.world import InitialState
from ttm.sim.tasks.groups import add_clutter
from ttm.sim.tasks.motions import OpenTask, base_facing, gripper_start, lay_objects


class OpenDrawer(OpenTask):
    """The robot stands in front of the chest and must pull out the named drawer."""

    template = "open the {} drawer"
    paraphrases = ("please open the {} drawer", "open the {} one of the drawers")
    goals = tuple(DRAWER_Z_M)
    with_clutter = staticmethod(add_clutter)

    def sample(self, rng: np.random.Generator) -> InitialState:
        _, placed = lay_objects(rng, rng.uniform(0.0, 0.8))
        base = base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1])
        return InitialState(self.goals[rng.integers(3)], placed, base, gripper_start(rng))
