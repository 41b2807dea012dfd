"""An example of a task: lift a ball that stands in no other task, once a lamp has turned green."""

from __future__ import annotations

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.motions import base_facing, gripper_start, park_objects
from ttm.sim.tasks.task import Grasp, Motion, Task

RADIUS_M = 0.03
RED, GREEN = (0.8, 0.1, 0.1, 1.0), (0.1, 0.8, 0.1, 1.0)
GREEN_TICK = 3


class LiftBall(Task):
    """A ball lies on the counter and a lamp hangs above it. The lamp turns green after some ticks."""

    template = "lift the {}"
    goals = ("orange ball",)
    max_ticks = 60

    @staticmethod
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add the ball, which can move, and the lamp, which cannot."""
        ball = scene.worldbody.add_body(name="orange ball")
        ball.add_joint(scene.find_default("object"), name="orange ball")
        ball.add_geom(
            scene.find_default("object"),
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=(RADIUS_M, 0, 0),
            mass=0.1,
            rgba=(1.0, 0.5, 0.0, 1.0),
        )
        scene.worldbody.add_geom(
            scene.find_default("decor"),
            name="lamp",
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=(0.05, 0, 0),
            pos=(1.4, 0.4, 1.2),
        )

    def sample(self, rng: np.random.Generator) -> InitialState:
        """See `Task.sample`."""
        x_m, y_m = COUNTER_FRONT_X_M + 0.13, rng.uniform(0.2, 0.6)
        placed = {**park_objects(), "orange ball": (x_m, y_m, COUNTER_TOP_Z_M + RADIUS_M)}
        return InitialState("orange ball", placed, base_facing(rng, x_m, y_m), gripper_start(rng))

    def update(self, world: KitchenWorld) -> None:
        """Colour the lamp."""
        world.model.geom("lamp").rgba[:] = GREEN if world.tick >= GREEN_TICK else RED

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the ball hangs above the counter."""
        return bool(world.data.body("orange ball").xpos[2] > COUNTER_TOP_Z_M + RADIUS_M + 0.05)

    def grasp(self, world: KitchenWorld) -> Grasp:
        """Hold the ball in its middle."""
        return Grasp(world.data.body("orange ball").xpos, "orange ball")

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift it straight up."""
        return Motion(translation_m=np.array([0.0, 0.0, 0.03]))
