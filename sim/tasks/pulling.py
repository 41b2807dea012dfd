"""Opening a drawer of the chest: what several tasks share of predicate and expert."""

from __future__ import annotations

import numpy as np

from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.task import Grasp, Motion

OPEN_M = 0.10
"""A drawer counts as open when it has come out this far."""
PULLED_OUT_M = 0.17
"""The expert pulls a drawer out this far."""


def pulled_m(world: KitchenWorld, drawer: str) -> float:
    """Return how far the drawer has come out, m."""
    return float(world.data.joint(f"drawer_{drawer}").qpos[0])


def grasp_handle(world: KitchenWorld, drawer: str) -> Grasp:
    """Hold the drawer by its handle."""
    return Grasp(world.data.site(f"handle_{drawer}").xpos, f"drawer_{drawer}")


def pull(world: KitchenWorld, drawer: str) -> Motion:
    """Pull the drawer by driving backwards."""
    backwards_m_s = np.clip(2.0 * (pulled_m(world, drawer) - PULLED_OUT_M), -0.2, 0.0)
    return Motion(base=np.array([backwards_m_s, 0.0]))
