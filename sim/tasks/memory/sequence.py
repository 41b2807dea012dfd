"""Touch three objects in the order in which a panel showed their colours, before they stood there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M
from ttm.sim.kitchen.world import KitchenWorld, robot_touches
from ttm.sim.tasks.memory import content, cue
from ttm.sim.tasks.motions import grasp_upright
from ttm.sim.tasks.task import Grasp, Motion

SHOW_TICKS = 3
"""Ticks for each of the three: two in which its colour is shown, and one in which none is."""
CLEAR_M = 0.09
"""The gripper is clear of the row when it is this far before the objects."""
IN_LINE_M = 0.05
"""The gripper may go in this far beside the object that is next."""


@dataclass(frozen=True, kw_only=True)
class SequenceState(content.ContentState):
    """In which circular order the colours are shown."""

    circle: tuple[int, ...]
    """The numbers of the choices in the order in which they are shown, begun anywhere."""

    def order_from(self, choice: str) -> tuple[str, ...]:
        """Return the choices in the order in which they are shown if that one is shown first."""
        circle = [self.choices[number] for number in self.circle]
        first = circle.index(choice)
        return (*circle[first:], *circle[:first])

    @property
    def order(self) -> tuple[str, ...]:
        """The right order. The right first choice stands first."""
        return self.order_from(self.goal)


class Sequence(cue.CueTask):
    """The panel takes three colours one after the other: touch the objects of these in that order.

    The objects appear at "go". The choice is the first one touched. Success needs all three in order. With
    the cue left on, the fields show the order from left to right, and those of touched objects go out.
    """

    template = "touch the three objects in the order that was shown"
    goals = (*content.HUES, *content.HELD_OUT_HUES)
    cue_ticks = SHOW_TICKS * len(cue.SIDES)
    max_ticks = 150
    add_to_scene = staticmethod(content.add_coloured_row)

    def sample(self, rng: np.random.Generator) -> SequenceState:
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.12, 0.16)
        row = content.draw_row(rng, x_m)
        return SequenceState(**row, circle=tuple(int(number) for number in rng.permutation(3)))

    def update(self, world: KitchenWorld) -> None:
        """Show the colours one after the other, and from "go" on the objects; note which are touched."""
        start = cue.start_of(world, SequenceState)
        if world.tick == 0:
            cue.place_panel(world, start.centre_y_m)
            content.paint_row(world)
        content.show_row(world, go_tick=self.go_tick(world))
        for choice in start.choices if self.go(world) else ():
            if choice not in world.notes and robot_touches(world, start.bodies[choice]):
                world.notes.append(choice)
        cue.colour_panel(world, go=self.go(world), shown=self._fields(world, start))

    def _fields(self, world: KitchenWorld, start: SequenceState) -> dict[str, cue.Colour]:
        choice, since = self.shown(world)
        if choice is None:
            return {}
        order = start.order_from(choice)
        if start.left_on:
            ranked = zip(reversed(cue.SIDES), order, strict=True)
            return {side: content.rgba(each) for side, each in ranked if each not in world.notes}
        index, since = divmod(since, SHOW_TICKS)
        visible = since < SHOW_TICKS - 1
        return dict.fromkeys(cue.SIDES, content.rgba(order[index])) if visible else {}

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
        left = [choice for choice in start.order if choice not in world.notes]
        if not left:
            return None
        name = start.bodies[left[0]]
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
