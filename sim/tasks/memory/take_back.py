"""Put an object back to the place from which it was taken."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.motions import (
    GRASP_HEIGHT_M,
    OBJECT_SPACING_M,
    WAITING_M,
    base_facing,
    drive_to,
    grasp_upright,
    gripper_start,
    is_far,
    park_objects,
    step_to,
)
from ttm.sim.tasks.task import Grasp, Motion

MAT_RADIUS_M = 0.055
MAT_RGBA = (0.35, 0.30, 0.28, 1.0)
PLACED_M = 0.05
"""The object counts as put back when it stands this near to the middle of its mat."""
STANDING_M = 0.012
"""How far the object's height may be off that of one that stands."""
LET_GO_OPENING = 0.85
"""The gripper has let go when it is opened wider than this."""
CLEARANCE_M = 0.05
"""The expert carries the object this far above the counter."""
ALIGNED_M = 0.02
"""The expert lowers and lets go of the object this near to the middle of its mat."""


@dataclass(frozen=True, kw_only=True)
class TakeBackState(cue.CueState):
    """Where the mats lie, and what the robot holds."""

    held: str
    """The object."""
    places_m: dict[str, np.ndarray]
    """Side -> x and y of its mat, (2,) m in the world."""


class TakeBack(cue.CueTask):
    """An object stands on one of three mats, and then it is in the robot's gripper: put it back.

    With the cue left on, the panel shows the side all the time.
    """

    template = "put the object back to where it was taken from"
    goals = cue.SIDES
    cue_ticks = 5

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add three mats, which can be seen and not touched, and the panel."""
        cue.add_panel(scene)
        for side in cue.SIDES:
            scene.worldbody.add_body(name=f"mat_{side}").add_geom(
                scene.find_default("decor"),
                type=mujoco.mjtGeom.mjGEOM_CYLINDER,
                size=(MAT_RADIUS_M, 0.001, 0),
                rgba=MAT_RGBA,
            )

    def sample(self, rng: np.random.Generator) -> TakeBackState:
        centre_y_m = rng.uniform(0.0, 0.8)
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.11, 0.15)
        held = str(rng.choice(list(OBJECTS)))
        base, gripper_m = base_facing(rng, x_m, centre_y_m), gripper_start(rng)
        in_hand = {held: _in_hand(base, gripper_m, OBJECTS[held].height_m)}
        return TakeBackState(
            goal=cue.SIDES[rng.integers(3)],
            objects_m={**park_objects(), **in_hand},
            base_pose=base,
            gripper_m=gripper_m,
            grip_m=OBJECTS[held].radius_m,
            choices=cue.SIDES,
            gap=cue.draw_gap(rng),
            held=held,
            places_m={
                side: np.array([x_m, centre_y_m + OBJECT_SPACING_M * (i - 1)])
                for i, side in enumerate(cue.SIDES)
            },
        )

    def update(self, world: KitchenWorld) -> None:
        """Lay out the mats, and show the object on its own one as long as the cue lasts."""
        start = cue.start_of(world, TakeBackState)
        shown, since = self.shown(world)
        lit = {shown: cue.LIT} if start.left_on and shown else {}
        cue.colour_panel(world, go=self.go(world), shown=lit)
        if world.tick == 0:
            for side, place_m in start.places_m.items():
                world.model.body(f"mat_{side}").pos[:] = (*place_m, COUNTER_TOP_Z_M + 0.001)
        if shown and since < self.cue_ticks:
            standing_m = COUNTER_TOP_Z_M + OBJECTS[start.held].height_m / 2
            pose = (*start.places_m[shown], standing_m, 1, 0, 0, 0)
            world.data.joint(start.held).qpos[:] = pose
            cue.place_panel(world, float(start.places_m["middle"][1]))

    def choice(self, world: KitchenWorld) -> str | None:
        return cue.approached(world, cue.start_of(world, TakeBackState).places_m)

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the object stands on its mat and the gripper has let go of it."""
        open_wide = world.controller.gripper_opening() > LET_GO_OPENING
        return open_wide and _stands_within(world, PLACED_M)

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        held = cue.start_of(world, TakeBackState).held
        if _stands_within(world, ALIGNED_M):
            return None
        return grasp_upright(world, held, OBJECTS[held].height_m)

    def carry(self, world: KitchenWorld) -> Motion:
        """Drive up, bring the object above its mat and lower it; when it stands there, back off."""
        if _stands_within(world, ALIGNED_M):
            return Motion(translation_m=np.array([-0.02, 0.0, 0.0]))
        start = cue.start_of(world, TakeBackState)
        place_m = np.array([*start.places_m[start.goal], COUNTER_TOP_Z_M + GRASP_HEIGHT_M])
        target_m = world.controller.to_base_frame(place_m)
        gripper_m, _ = world.controller.gripper_pose()
        drive = drive_to(target_m)
        aligned = np.hypot(*(target_m - gripper_m)[:2]) < 0.8 * ALIGNED_M
        target_m[2] += 0.0 if aligned else CLEARANCE_M
        if is_far(target_m):
            target_m[:2] = WAITING_M[:2]
        return Motion(step_to(target_m, gripper_m), drive)


def _in_hand(
    base: np.ndarray, gripper_m: np.ndarray, height_m: float
) -> tuple[float, float, float]:
    """Return where an object is that the gripper holds at the height at which the expert grasps."""
    x_m, y_m, yaw = base
    ahead_m, aside_m, z_m = gripper_m
    return (
        float(x_m + np.cos(yaw) * ahead_m - np.sin(yaw) * aside_m),
        float(y_m + np.sin(yaw) * ahead_m + np.cos(yaw) * aside_m),
        float(z_m - GRASP_HEIGHT_M + height_m / 2),
    )


def _stands_within(world: KitchenWorld, radius_m: float) -> bool:
    """Return whether the object stands on the counter, that near to the middle of its mat."""
    start = cue.start_of(world, TakeBackState)
    x_m, y_m, z_m = world.data.body(start.held).xpos
    away_m = np.hypot(*(start.places_m[start.goal] - (x_m, y_m)))
    above_m = z_m - COUNTER_TOP_Z_M - OBJECTS[start.held].height_m / 2
    return bool(away_m < radius_m and abs(above_m) < STANDING_M)
