"""A panel with three fields, which stands on the counter behind the objects and shows cues."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco

from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld

SIDES = ("right", "middle", "left")
"""The fields and the objects in front of them, by rising y, as the robot sees them."""
PANEL_X_M = 1.40
HALF_HEIGHT_M = 0.10
FIELD_SPACING_M = 0.20

Colour = tuple[float, float, float, float]
GREY: Colour = (0.25, 0.25, 0.27, 1.0)
WHITE: Colour = (1.0, 1.0, 1.0, 1.0)
LIT: Colour = (1.0, 0.35, 0.75, 1.0)
"""Pink, which is the colour of nothing else."""


def add_panel(scene: mujoco.MjSpec) -> None:
    """Add the panel: a frame and three fields, which can be seen and not touched."""
    panel = scene.worldbody.add_body(name="panel")
    _add_box(scene, panel, "panel_frame", (0.02, 0, 0), (0.01, 0.34, HALF_HEIGHT_M))
    for index, side in enumerate(SIDES):
        y_m = FIELD_SPACING_M * (index - 1)
        _add_box(scene, panel, f"panel_{side}", (0, y_m, 0), (0.01, 0.085, HALF_HEIGHT_M - 0.025))


def _add_box(
    scene: mujoco.MjSpec,
    body: mujoco.MjsBody,
    name: str,
    pos: tuple[float, ...],
    size: tuple[float, ...],
) -> None:
    decor = scene.find_default("decor")
    body.add_geom(decor, name=name, type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size)


def place_panel(world: KitchenWorld, y_m: float) -> None:
    """Put the panel behind objects whose middle lies at y_m in the world."""
    world.model.body("panel").pos[:] = (PANEL_X_M, y_m, COUNTER_TOP_Z_M + HALF_HEIGHT_M)
    mujoco.mj_forward(world.model, world.data)


def colour_panel(world: KitchenWorld, *, go: bool, shown: Mapping[str, Colour]) -> None:
    """Show some fields in a colour. All the rest is grey before "go", and white from then on."""
    rest = WHITE if go else GREY
    world.model.geom("panel_frame").rgba[:] = rest
    for side in SIDES:
        world.model.geom(f"panel_{side}").rgba[:] = shown.get(side, rest)
