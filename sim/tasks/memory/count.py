"""Open the drawer whose number is that of the lamps' blinks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ttm.sim.kitchen.scene import CHEST_POSITION_M, HANDLE_X_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.chosen import DRAWERS, OpenChosen
from ttm.sim.tasks.memory.cue import LAMPS, CueState, add_lamps, colour_lamps, draw_gap, start_of
from ttm.sim.tasks.motions import base_facing, gripper_start, lay_objects

BLINK_SLOTS = 5
"""How many blinks there is time for."""
SLOT_TICKS = 2
"""A blink lasts the first tick of a slot."""


@dataclass(frozen=True, kw_only=True)
class CountState(CueState):
    """When the lamps may blink."""

    slots: tuple[int, ...]
    """Different slots in random order. The first ones of them are used."""


class Count(OpenChosen):
    """All lamps blink once, twice or three times: open the top, the middle or the bottom drawer.

    When they blink is random, so that no single tick tells the number. With the cue left on, as
    many lamps as there are blinks stay lit.
    """

    template = "open the drawer whose number from the top is that of the blinks"
    takes_decoys = False
    cue_ticks = BLINK_SLOTS * SLOT_TICKS
    least_rate = 1.0  # so that blinks do not meet
    add_to_scene = staticmethod(add_lamps)

    def sample(self, rng: np.random.Generator) -> CountState:
        _, placed = lay_objects(rng, rng.uniform(0.0, 0.8))
        return CountState(
            base_pose=base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1]),
            goal=DRAWERS[rng.integers(3)],
            objects_m=placed,
            gripper_m=gripper_start(rng),
            choices=DRAWERS,
            gap=draw_gap(rng),
            slots=tuple(int(slot) for slot in rng.permutation(BLINK_SLOTS)[:3]),
        )

    def update(self, world: KitchenWorld) -> None:
        """Blink, or light as many lamps as there are blinks if the cue is left on."""
        start = start_of(world, CountState)
        number = DRAWERS.index(start.goal) + 1
        blinks = world.tick in [SLOT_TICKS * slot for slot in start.slots[:number]]
        lit = LAMPS[:number] if start.left_on else LAMPS if blinks else ()
        colour_lamps(world, go=self.go(world), lit=lit)
