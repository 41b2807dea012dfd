"""Find an object in three drawers, two of which were opened already and were empty."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import CHEST_POSITION_M, HANDLE_X_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.chosen import CHOSEN_M, DRAWERS, OpenChosen
from ttm.sim.tasks.memory.cue import CueState, add_lamps, colour_lamps, draw_gap, start_of
from ttm.sim.tasks.motions import base_facing, gripper_start, park_objects, pulled_m

MOVEMENT_M = (0.07, 0.14, 0.14, 0.07, 0.0)
"""How far a drawer is out in each tick of the search that the robot watches."""
AJAR_M = 0.03
"""How far a searched drawer stays out if the cue is left on."""
SEEN_M = CHOSEN_M
"""The object can be seen once its drawer is out this far, which is a choice: no look comes before it."""


@dataclass(frozen=True, kw_only=True)
class SearchState(CueState):
    """The order of the search."""

    order: tuple[str, ...]
    """All drawers in random order. The search leaves the right one out."""


class Search(OpenChosen):
    """Two of the drawers open and shut by themselves, and are empty: open the one that holds the ball.

    Whoever opens a drawer a second time has failed. With the cue left on, the searched drawers stay
    ajar.
    """

    template = "find the ball and open no drawer twice"
    takes_decoys = False
    cue_ticks = 2 * len(MOVEMENT_M)

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add the lamps, which say "go", and a ball in each of the drawers, only one of which is shown."""
        add_lamps(scene)
        for drawer in DRAWERS:
            scene.body(f"drawer_{drawer}").add_geom(
                scene.find_default("decor"),
                name=f"ball_{drawer}",
                type=mujoco.mjtGeom.mjGEOM_SPHERE,
                size=(0.035, 0, 0),
                pos=(0.07, 0, 0.02),
            )

    def sample(self, rng: np.random.Generator) -> SearchState:
        return SearchState(
            base_pose=base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1]),
            goal=DRAWERS[rng.integers(3)],
            objects_m=park_objects(),
            gripper_m=gripper_start(rng),
            choices=DRAWERS,
            gap=draw_gap(rng),
            order=tuple(str(drawer) for drawer in rng.permutation(DRAWERS)),
        )

    def update(self, world: KitchenWorld) -> None:
        """Open and shut the empty drawers one after the other, and show the ball in an open drawer."""
        start = start_of(world, SearchState)
        if world.tick <= self.go_tick(world):
            self._search(world, start)
        for drawer in DRAWERS:
            visible = drawer == start.goal and pulled_m(world, drawer) > SEEN_M
            world.model.geom(f"ball_{drawer}").rgba[:] = (1.0, 0.5, 0.0, float(visible))
        colour_lamps(world, go=self.go(world), lit=())

    def _search(self, world: KitchenWorld, start: SearchState) -> None:
        empty = [drawer for drawer in start.order if drawer != start.goal]
        for index, drawer in enumerate(empty):
            since = world.tick - index * len(MOVEMENT_M)
            out_m = MOVEMENT_M[since] if 0 <= since < len(MOVEMENT_M) else 0.0
            if start.left_on and since >= len(MOVEMENT_M) - 1:
                out_m = AJAR_M
            if out_m > 0.0:
                world.data.joint(f"drawer_{drawer}").qpos[:] = out_m
        mujoco.mj_forward(world.model, world.data)
