"""Three lamps in a row on the chest of drawers, which show cues and say "go"."""

from __future__ import annotations

from collections.abc import Collection

import mujoco

from ttm.sim.kitchen.scene import CHEST_POSITION_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory.panel import GREY, LIT, WHITE

LAMPS = ("lamp_left", "lamp_middle", "lamp_right")
CHEST_TOP_Z_M = 0.93
SPACING_M = 0.19
RADIUS_M = 0.045


def add_lamps(scene: mujoco.MjSpec) -> None:
    """Add the lamps, which can be seen and not touched."""
    for index, name in enumerate(LAMPS):
        y_m = CHEST_POSITION_M[1] + SPACING_M * (1 - index)
        scene.worldbody.add_geom(
            scene.find_default("decor"),
            name=name,
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(RADIUS_M, 0.04, 0),
            pos=(1.13, y_m, CHEST_TOP_Z_M + 0.04),
        )


def colour_lamps(world: KitchenWorld, *, go: bool, lit: Collection[str]) -> None:
    """Light some of the lamps. The others are grey before "go", and white from then on."""
    for name in LAMPS:
        world.model.geom(name).rgba[:] = LIT if name in lit else WHITE if go else GREY
