"""Pick up the named one of several household objects, as in SayCan and RT-1."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.groups import LYING, GroupTask, hold, lay_household
from ttm.sim.tasks.motions import LIFT_M, rise
from ttm.sim.tasks.task import Grasp, Motion


class PickObject(GroupTask):
    """Lift the named object. Bottles and cans may lie."""

    template = "pick up the {}"
    paraphrases = ("grab the {}", "lift the {} off the counter")
    goals = tuple(HOUSEHOLD)

    def sample(self, rng: np.random.Generator) -> InitialState:
        goal = str(rng.choice(self.goals))
        lies = HOUSEHOLD[goal].topples and rng.random() < 0.3
        return lay_household(rng, goal, {goal: LYING} if lies else {})

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the object hangs above where it was."""
        goal = world.start.goal
        return bool(world.data.body(goal).xpos[2] > world.start.objects_m[goal][2] + LIFT_M)

    def grasp(self, world: KitchenWorld) -> Grasp:
        return hold(world, world.start.goal)

    def carry(self, world: KitchenWorld) -> Motion:
        return rise(world, self.grasp(world))
