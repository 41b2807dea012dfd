"""Open the named one of the chest's three drawers."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.scene import CHEST_POSITION_M, DRAWER_Z_M, HANDLE_X_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.placement import base_facing, gripper_start, lay_objects
from ttm.sim.tasks.task import Grasp, Motion, Task

OPEN_M = 0.10
"""A drawer counts as open when it has come out this far."""
PULLED_OUT_M = 0.17
"""The expert pulls a drawer out this far."""


class OpenDrawer(Task):
    """The robot stands in front of the chest and must pull out the named drawer."""

    template = "open the {} drawer"
    goals = tuple(DRAWER_Z_M)

    def sample(self, rng: np.random.Generator) -> InitialState:
        """See `Task.sample`."""
        _, placed = lay_objects(rng, rng.uniform(0.0, 0.8))
        base = base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1])
        return InitialState(self.goals[rng.integers(3)], placed, base, gripper_start(rng))

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the named drawer is open."""
        return _pulled_m(world) > OPEN_M

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the drawer by its handle."""
        goal = world.start.goal
        return Grasp(world.data.site(f"handle_{goal}").xpos, f"drawer_{goal}")

    def carry(self, world: KitchenWorld) -> Motion:
        """Pull the drawer by driving backwards."""
        backwards_m_s = np.clip(2.0 * (_pulled_m(world) - PULLED_OUT_M), -0.2, 0.0)
        return Motion(base=np.array([backwards_m_s, 0.0]))


def _pulled_m(world: KitchenWorld) -> float:
    return float(world.data.joint(f"drawer_{world.start.goal}").qpos[0])
