"""The shell game: under which of three cups is the ball, after swaps that one can watch?"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.motions import (
    OBJECT_SPACING_M,
    LiftTask,
    base_facing,
    gripper_start,
    park_objects,
)

CUPS = ("cup 0", "cup 1", "cup 2")
CUP_RADIUS_M = 0.033
CUP_HEIGHT_M = 0.12
BALL_RADIUS_M = 0.025
BALL_RGBA = (1.0, 0.35, 0.75, 1.0)
OUT_OF_SIGHT_M = (-4.0, 3.0, 0.0)
SHOWN_TICKS = 3
"""The ball lies in front of its cup for so long."""
SWAPS = 3
SWAP_TICKS = 4
DETOUR_M = 0.09
"""In a swap one cup passes this far in front of the line between both, and the other behind it."""


@dataclass(frozen=True, kw_only=True)
class ShellState(cue.CueState):
    """Where the cups stand, and how they are swapped."""

    places_m: np.ndarray
    """(3, 2): x and y of the cups' places, from right to left, m in the world. Cup i begins at place i."""
    swaps: tuple[tuple[int, int], ...]
    """The two places whose cups change, swap by swap."""

    def cup_at_last(self, side: str) -> str:
        """Return the cup that stands on that side after all swaps."""
        places = list(range(len(CUPS)))  # place -> cup
        for first, second in self.swaps:
            places[first], places[second] = places[second], places[first]
        return CUPS[places[cue.SIDES.index(side)]]

    def cups_m(self, tick: int) -> np.ndarray:
        """Return where the cups are at a tick, (3, 2) m in the world, cup by cup."""
        places = list(range(len(CUPS)))  # place -> cup
        found = self.places_m.copy()
        for index, (first, second) in enumerate(self.swaps):
            since = tick - SHOWN_TICKS + 1 - index * SWAP_TICKS
            if since <= 0:
                break
            progress = min(since / SWAP_TICKS, 1.0)
            one, other = places[first], places[second]
            found[one] = self._on_the_way(first, second, progress, -DETOUR_M)
            found[other] = self._on_the_way(second, first, progress, DETOUR_M)
            places[first], places[second] = other, one
        return found

    def _on_the_way(self, here: int, there: int, progress: float, detour_m: float) -> np.ndarray:
        start_m, end_m = self.places_m[here], self.places_m[there]
        aside_m = np.array([detour_m * np.sin(np.pi * progress), 0.0])
        return start_m + progress * (end_m - start_m) + (progress < 1.0) * aside_m


class Shell(LiftTask, cue.CueTask):
    """A ball goes under one of three equal cups, which then change places three times.

    The robot must lift the cup that hides it. With the cue left on, the ball stays in front of its
    cup all the time.
    """

    template = "lift the cup that hides the ball"
    goals = cue.SIDES
    takes_decoys = False
    cue_ticks = SHOWN_TICKS + SWAPS * SWAP_TICKS

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add three cups, which can move, a ball, which can only be seen, and the panel, which says "go"."""
        for name in CUPS:
            cup = scene.worldbody.add_body(name=name, pos=OUT_OF_SIGHT_M)
            cup.add_joint(scene.find_default("object"), name=name)
            cup.add_geom(
                scene.find_default("object"),
                type=mujoco.mjtGeom.mjGEOM_CYLINDER,
                size=(CUP_RADIUS_M, CUP_HEIGHT_M / 2, 0),
                mass=0.12,
                rgba=(0.85, 0.50, 0.20, 1.0),
            )
        scene.worldbody.add_body(name="ball").add_geom(
            scene.find_default("decor"),
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=(BALL_RADIUS_M, 0, 0),
            rgba=BALL_RGBA,
        )
        cue.add_panel(scene)

    def sample(self, rng: np.random.Generator) -> ShellState:
        centre_y_m = rng.uniform(0.0, 0.8)
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.12, 0.16)
        places_m = np.array([(x_m, centre_y_m + OBJECT_SPACING_M * i) for i in (-1, 0, 1)])
        standing_m = COUNTER_TOP_Z_M + CUP_HEIGHT_M / 2 + 0.001
        cups = {name: (*places_m[i], standing_m) for i, name in enumerate(CUPS)}
        pairs = ((0, 1), (1, 2), (0, 2))
        return ShellState(
            goal=cue.SIDES[rng.integers(3)],
            objects_m={**park_objects(), **cups},
            base_pose=base_facing(rng, x_m, centre_y_m),
            gripper_m=gripper_start(rng),
            choices=cue.SIDES,
            gap=cue.draw_gap(rng),
            places_m=places_m,
            swaps=tuple(pairs[rng.integers(3)] for _ in range(SWAPS)),
        )

    def update(self, world: KitchenWorld) -> None:
        """Move the cups and the ball until "go". Then the ball lies under its cup."""
        start, go = cue.start_of(world, ShellState), self.go(world)
        cue.colour_panel(world, go=go, shown={})
        if world.tick > self.go_tick(world):
            return
        cups_m = start.cups_m(world.tick)
        for name, place_m in zip(CUPS, cups_m, strict=True):
            world.data.joint(name).qpos[:2] = place_m
        x_m, y_m = cups_m[CUPS.index(start.cup_at_last(start.goal))]
        if start.left_on or world.tick < SHOWN_TICKS:
            x_m -= CUP_RADIUS_M + 1.5 * BALL_RADIUS_M
        world.model.body("ball").pos[:] = (x_m, y_m, COUNTER_TOP_Z_M + BALL_RADIUS_M)
        cue.place_panel(world, float(start.places_m[1, 1]))

    def choice(self, world: KitchenWorld) -> str | None:
        start = cue.start_of(world, ShellState)
        cups = {side: world.data.body(start.cup_at_last(side)) for side in cue.SIDES}
        return cue.approached(world, {side: cup.xpos for side, cup in cups.items()})

    def body_to_lift(self, world: KitchenWorld) -> tuple[str, float]:
        start = cue.start_of(world, ShellState)
        return start.cup_at_last(start.goal), CUP_HEIGHT_M
