"""Pick up the object of the shape that a silhouette showed, before any object stood there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import content, cue
from ttm.sim.tasks.memory.chosen import PickChosen

STEM, BAR = (0.0, 0.022), 0.068
SHAPES = {
    "pole": ((*STEM, 0.0, 0.22),),
    "block": ((0.0, 0.036, 0.0, 0.11),),
    "tee": ((*STEM, 0.0, 0.13), (0.0, BAR, 0.13, 0.19)),
    "tray": ((*STEM, 0.0, 0.13), (0.0, BAR, 0.0, 0.045)),
    "ball": ((*STEM, 0.0, 0.13), (0.0, 0.05, 0.12, 0.21)),
}
"""The shapes that episodes draw: of each part its middle and half its width in y, and where it begins
and ends in z, m. All are held by a stem at the height at which the expert grasps."""
HELD_OUT_SHAPES = {
    "spool": ((*STEM, 0.0, 0.14), (0.0, BAR, 0.0, 0.045), (0.0, BAR, 0.13, 0.19)),
    "cross": ((*STEM, 0.0, 0.22), (0.0, BAR, 0.13, 0.18)),
    "flag": ((*STEM, 0.0, 0.22), (0.04, 0.05, 0.13, 0.22)),
}
"""Those that they draw for `cue="held_out"` alone."""
ALL_SHAPES = SHAPES | HELD_OUT_SHAPES
DEPTH_M = 0.022
"""Half of what all parts measure in x, so that none is in the way of the hand."""
SILHOUETTE = 1.25
"""How much larger the silhouette is."""


@dataclass(frozen=True, kw_only=True)
class ShapeState(content.ContentState):
    """In which colours the shapes are shown."""

    colour: str
    """That of the objects."""
    cue_colour: str
    """That of the silhouette, which is another one."""


class ShapeShown(PickChosen):
    """A silhouette stands before the panel; at "go" three objects appear, one of them of its shape.

    All objects have one colour, and the silhouette has another one.
    """

    template = "pick up the object of the shape that was shown"
    goals = tuple(ALL_SHAPES)

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add an object of each shape, whose origin lies at its bottom, and the panel with silhouettes."""
        cue.add_panel(scene)
        for shape in ALL_SHAPES:
            body = scene.worldbody.add_body(name=shape)
            body.add_joint(scene.find_default("object"), name=shape)
            for kind, place, size in _parts(shape):
                body.add_geom(
                    scene.find_default("object"), type=kind, pos=place, size=size, mass=0.06
                )
            for number, (kind, place, size) in enumerate(_parts(shape, SILHOUETTE)):
                scene.body("panel").add_geom(
                    scene.find_default("decor"),
                    name=f"silhouette_{shape}_{number}",
                    type=kind,
                    pos=np.add(place, (-0.06, 0.0, -cue.HALF_HEIGHT_M)),
                    size=size,
                )

    def sample(self, rng: np.random.Generator) -> ShapeState:
        row = content.draw_row(rng, names=SHAPES, held_out_names=HELD_OUT_SHAPES)
        row["bodies"] = {shape: shape for shape in ALL_SHAPES}
        row["places_m"] = tuple((x_m, y_m, COUNTER_TOP_Z_M) for x_m, y_m, _ in row["places_m"])
        row["objects_m"] |= {shape: (-4.5, 0.5 * i - 2, 0.0) for i, shape in enumerate(ALL_SHAPES)}
        colour, cue_colour = content.draw_names(rng, content.HUES, 2)
        return ShapeState(**row, colour=colour, cue_colour=cue_colour)

    def update(self, world: KitchenWorld) -> None:
        """Show the cue, and the objects from "go" on."""
        super().update(world)
        start = cue.start_of(world, ShapeState)
        for shape in ALL_SHAPES if world.tick == 0 else ():
            content.paint(world, shape, content.rgba(start.colour))
        content.show_row(world, go_tick=self.go_tick(world))
        shown, _ = self.shown(world)
        for shape in ALL_SHAPES:
            red, green, blue, _ = content.rgba(start.cue_colour)
            for number in range(len(ALL_SHAPES[shape])):
                geom = world.model.geom(f"silhouette_{shape}_{number}")
                geom.rgba[:] = (red, green, blue, float(shape == shown))

    def fields(self, choice: str) -> Mapping[str, cue.Colour]:
        return {}

    def body_to_lift(self, world: KitchenWorld) -> tuple[str, float]:
        return world.start.goal, 0.0


def _parts(
    shape: str, scale: float = 1.0
) -> Iterator[tuple[mujoco.mjtGeom, np.ndarray, np.ndarray]]:
    """Return type, position (3,) and size (3,) of the geoms of a shape."""
    for y_m, half_m, low_m, high_m in ALL_SHAPES[shape]:
        round_ = shape == "ball" and low_m > 0
        kind = mujoco.mjtGeom.mjGEOM_ELLIPSOID if round_ else mujoco.mjtGeom.mjGEOM_BOX
        place, size = (0.0, y_m, (low_m + high_m) / 2), (DEPTH_M, half_m, (high_m - low_m) / 2)
        yield kind, scale * np.array(place), scale * np.array(size)
