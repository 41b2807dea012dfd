"""Touch three objects in the order in which a panel showed them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, OBJECTS
from ttm.sim.kitchen.world import KitchenWorld, robot_touches
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.motions import base_facing, grasp_upright, gripper_start, lay_objects
from ttm.sim.tasks.task import Grasp, Motion

SHOW_TICKS = 3
"""Ticks for each of the three: two in which its field is lit, and one in which none is."""
RANK_COLOURS = (cue.LIT, (1.0, 0.55, 0.10, 1.0), (0.15, 0.80, 0.90, 1.0))
"""With the cue left on: the colours of the field to touch first, second and third."""
CLEAR_M = 0.09
"""The gripper is clear of the row when it is this far before the objects."""
IN_LINE_M = 0.05
"""The gripper may go in this far beside the object that is next."""


@dataclass(frozen=True, kw_only=True)
class SequenceState(cue.CueState):
    """Which object stands where, and in which circular order they are shown."""

    sides: dict[str, str]
    """Side -> the object that stands there."""
    circle: tuple[str, ...]
    """The sides in the order in which they are shown, begun anywhere."""
    centre_y_m: float
    """Where the middle of the row lies."""

    @property
    def order(self) -> tuple[str, ...]:
        """The sides in the order in which they are shown. The right first choice stands first."""
        first = self.circle.index(self.goal)
        return self.circle[first:] + self.circle[:first]


class Sequence(cue.CueTask):
    """The panel's fields light up one after the other: touch the objects before them in that order.

    The choice is the first object touched. Success needs all three in order. With the cue left on,
    the fields show the order by colours, and those of touched objects go out.
    """

    template = "touch the three objects in the order that was shown"
    goals = cue.SIDES
    takes_decoys = False
    cue_ticks = SHOW_TICKS * len(cue.SIDES)
    max_ticks = 150
    add_to_scene = staticmethod(cue.add_panel)

    def sample(self, rng: np.random.Generator) -> SequenceState:
        centre_y_m = rng.uniform(0.0, 0.8)
        chosen, placed = lay_objects(rng, centre_y_m)
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.12, 0.16)
        placed |= {name: (x_m, *placed[name][1:]) for name in chosen}  # so that none bars the way
        circle = tuple(str(side) for side in rng.permutation(cue.SIDES))
        return SequenceState(
            goal=circle[0],
            objects_m=placed,
            base_pose=base_facing(rng, x_m, centre_y_m),
            gripper_m=gripper_start(rng),
            choices=cue.SIDES,
            gap=cue.draw_gap(rng),
            sides=dict(zip(cue.SIDES, chosen, strict=True)),
            circle=circle,
            centre_y_m=centre_y_m,
        )

    def update(self, world: KitchenWorld) -> None:
        """Light up the fields one after the other, and note which objects are touched."""
        start = cue.start_of(world, SequenceState)
        if world.tick == 0:
            cue.place_panel(world, start.centre_y_m)
        for side in cue.SIDES if self.go(world) else ():
            if side not in world.notes and robot_touches(world, start.sides[side]):
                world.notes.append(side)
        cue.colour_panel(world, go=self.go(world), shown=self._shown(world, start))

    def _shown(self, world: KitchenWorld, start: SequenceState) -> dict[str, cue.Colour]:
        if start.left_on:
            ranked = zip(start.order, RANK_COLOURS, strict=True)
            return {side: colour for side, colour in ranked if side not in world.notes}
        index, since = divmod(world.tick, SHOW_TICKS)
        visible = index < len(cue.SIDES) and since < SHOW_TICKS - 1
        return {start.order[index]: cue.LIT} if visible else {}

    def choice(self, world: KitchenWorld) -> str | None:
        return world.notes[0] if world.notes else None

    def predicate(self, world: KitchenWorld) -> bool:
        return tuple(world.notes) == cue.start_of(world, SequenceState).order

    def is_lost(self, world: KitchenWorld) -> bool:
        touched = tuple(world.notes)
        return touched != cue.start_of(world, SequenceState).order[: len(touched)]

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        """Reach for the next object, as if to hold it, once the gripper is clear of the others."""
        start = cue.start_of(world, SequenceState)
        left = [side for side in start.order if side not in world.notes]
        if not left:
            return None
        name = start.sides[left[0]]
        grasp = grasp_upright(world, name, OBJECTS[name].height_m)
        point_m = world.controller.to_base_frame(grasp.point_m)
        gripper_m, _ = world.controller.gripper_pose()
        clear = point_m[0] - gripper_m[0] > CLEAR_M or abs(point_m[1] - gripper_m[1]) < IN_LINE_M
        return grasp if clear else None

    def carry(self, world: KitchenWorld) -> Motion:
        """Open the gripper and go back, out of the row."""
        if world.controller.gripper_opening() < 0.9:
            return Motion()
        return Motion(translation_m=np.array([-0.04, 0.0, 0.0]))
