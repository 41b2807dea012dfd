"""Pick up the named one of three objects on the counter."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M
from ttm.sim.kitchen.world import InitialState
from ttm.sim.tasks.groups import add_clutter
from ttm.sim.tasks.motions import LiftTask, base_facing, gripper_start, lay_objects


class Pick(LiftTask):
    """Three of the objects stand on the counter. The robot must lift the named one."""

    template = "pick up the {}"
    paraphrases = ("grab the {}", "lift the {} off the counter")
    goals = tuple(OBJECTS)
    with_clutter = staticmethod(add_clutter)

    def sample(self, rng: np.random.Generator) -> InitialState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        return InitialState(chosen[rng.integers(3)], placed, base, gripper_start(rng))
