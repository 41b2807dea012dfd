"""Pick up the object on the side that a panel showed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.memory.chosen import PickChosen
from ttm.sim.tasks.memory.content import RowState
from ttm.sim.tasks.motions import base_facing, gripper_start, lay_objects


class SideShown(PickChosen):
    """One of the panel's three fields lights up: pick up the object that stands before it."""

    template = "pick up the object on the side that was shown"
    goals = cue.SIDES
    add_to_scene = staticmethod(cue.add_panel)

    def sample(self, rng: np.random.Generator) -> RowState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
        return RowState(
            goal=cue.SIDES[rng.integers(3)],
            objects_m=placed,
            base_pose=base,
            gripper_m=gripper_start(rng),
            choices=cue.SIDES,
            gap=cue.draw_gap(rng),
            bodies=dict(zip(cue.SIDES, chosen, strict=True)),
            centre_y_m=centre_y_m,
        )

    def fields(self, choice: str) -> Mapping[str, cue.Colour]:
        return {choice: cue.LIT}
