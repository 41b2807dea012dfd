"""What several tasks share: initial states, reaching for a point, lifting a body, opening a drawer."""

from __future__ import annotations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.controller import READY_POSITION_M
from ttm.sim.kitchen.objects import OBJECTS
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.task import Grasp, Motion, Task

OBJECT_SPACING_M = 0.20

STANDOFF_M = 0.92
"""The robot drives until the grasp lies this far ahead of the base's centre, easy for the arm to reach."""
MAX_STEP_M = 0.04
"""The gripper moves no further than this in one tick."""
RETREAT_M = 0.11
"""The gripper lines up this far short of the grasp before it moves in."""
WAITING_M = (0.79, 0.0, 0.80)
"""Where the gripper is kept while the robot drives; the last value is the lowest height."""
STANDOFF_DOWN_M, WAITING_DOWN_M, REACH_DOWN_M = 0.72, (0.72, 0.0, 0.92), (0.71, 0.74)
"""The same for a gripper that points down, and the range of its x, in which the arm can turn it up."""
TURNED_RAD = 0.25
"""The gripper moves in and closes when it is turned less than this from how it is to hold."""

LIFT_M = 0.06
"""An object counts as picked up when it hangs this far above where it stood on the counter."""
GRASP_HEIGHT_M = 0.072
"""The expert's fingers close this far above the bottom of an object."""
LIFT_HEIGHT_M = 0.12
"""The expert lifts an object this far."""

OPEN_M = 0.10
"""A drawer counts as open when it has come out this far."""
PULLED_OUT_M = 0.17
"""The expert pulls a drawer out this far."""


def park_objects() -> dict[str, tuple[float, float, float]]:
    """Return positions of all objects behind the robot, out of sight of its cameras."""
    return {
        name: (-4.0, -2.0 + 0.5 * i, item.height_m / 2)
        for i, (name, item) in enumerate(OBJECTS.items())
    }


def lay_objects(
    rng: np.random.Generator, centre_y_m: float
) -> tuple[list[str], dict[str, tuple[float, float, float]]]:
    """Lay three of the objects side by side on the counter, in random order.

    Returns their names, from right to left, and the positions of all objects, m in the world.
    """
    chosen = [str(name) for name in rng.permutation(list(OBJECTS))[:3]]
    placed = park_objects()
    for slot, name in enumerate(chosen):
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.08, 0.18)
        y_m = centre_y_m + OBJECT_SPACING_M * (slot - 1) + rng.uniform(-0.02, 0.02)
        placed[name] = (x_m, y_m, COUNTER_TOP_Z_M + OBJECTS[name].height_m / 2 + 0.001)
    return chosen, placed


def base_facing(rng: np.random.Generator, x_m: float, y_m: float) -> np.ndarray:
    """Draw a base pose (3,) before the point (x_m, y_m), from which the robot sees it."""
    base_x_m = x_m - rng.uniform(1.2, 1.55)
    base_y_m = y_m + rng.uniform(-0.25, 0.25)
    yaw = np.arctan2(y_m - base_y_m, x_m - base_x_m) + rng.uniform(-0.15, 0.15)
    return np.array([base_x_m, base_y_m, yaw])


def gripper_start(rng: np.random.Generator) -> np.ndarray:
    """Draw a gripper position (3,) near the one where it waits, m in the base frame."""
    return np.array(READY_POSITION_M) + rng.uniform((0.0, -0.04, -0.03), (0.04, 0.04, 0.04))


# Driving up to a point and reaching for it. All points are (3,) in m in the base frame.


def standoff_m(rotation: SO3) -> float:
    """Return how far ahead of the base the gripper works when it is turned so, ahead or down."""
    return STANDOFF_M if rotation.as_matrix()[0, 0] > 0.5 else STANDOFF_DOWN_M


def drive_to(point_m: np.ndarray, distance_m: float = STANDOFF_M) -> np.ndarray:
    """Return the base's command (2,), m/s and rad/s, that brings the point before the arm."""
    bearing_rad = np.arctan2(point_m[1], point_m[0])
    forward_m_s = np.clip(1.5 * (point_m[0] - distance_m), -0.25, 0.35)
    return np.array([forward_m_s, np.clip(2.0 * bearing_rad, -0.6, 0.6)])


def is_far(point_m: np.ndarray, distance_m: float = STANDOFF_M) -> bool:
    """Return whether the robot must still drive before the arm can reach the point."""
    return bool(point_m[0] > distance_m + 0.15)


def step_to(target_m: np.ndarray, gripper_m: np.ndarray) -> np.ndarray:
    """Return a step (3,) m of the gripper towards the target, at most `MAX_STEP_M` long."""
    step_m = 0.7 * (target_m - gripper_m)
    return step_m * min(1.0, MAX_STEP_M / max(float(np.linalg.norm(step_m)), 1e-9))


def reach(grasp: Grasp, grasp_m: np.ndarray, gripper_m: np.ndarray, to_turn_rad: float) -> Motion:
    """Return a tick's way to a grasp: the gripper moves in the nearer it is to its line, as in a funnel.

    grasp_m: its point; to_turn_rad: how far the gripper is turned from how it is to hold.
    """
    off_line_m = float(np.hypot(*grasp.rotation.inverse().apply(grasp_m - gripper_m)[1:]))
    entered = np.clip(1.0 - (off_line_m - 0.012) / 0.03, 0.0, 1.0) * (to_turn_rad < TURNED_RAD)
    target_m = grasp_m - grasp.rotation.apply(np.array([RETREAT_M * (1.0 - entered), 0.0, 0.0]))
    distance_m = standoff_m(grasp.rotation)
    ahead = distance_m == STANDOFF_M
    if is_far(grasp_m, distance_m):  # while the robot still drives, take only the height
        x_m, y_m, z_m = WAITING_M if ahead else WAITING_DOWN_M
        z_m = max(grasp_m[2], z_m) if grasp.waiting_z_m is None else grasp.waiting_z_m
        target_m = np.array([x_m, y_m, z_m])
    target_m[0] = np.clip(target_m[0], *((0.77, np.inf) if ahead else REACH_DOWN_M))
    return Motion(step_to(target_m, gripper_m), drive_to(grasp_m, distance_m), grasp.rotation)


def grasp_upright(world: KitchenWorld, body: str, height_m: float) -> Grasp:
    """Hold the body, which is `height_m` tall, at a height that rises with it once it is lifted."""
    x_m, y_m, z_m = world.data.body(body).xpos
    bottom_z_m = float(z_m) - height_m / 2
    return Grasp(np.array([x_m, y_m, bottom_z_m + GRASP_HEIGHT_M]), body)


def rise(world: KitchenWorld, grasp: Grasp) -> Motion:
    """Lift straight up what the gripper holds."""
    gripper_m, _ = world.controller.gripper_pose()
    rise_m = COUNTER_TOP_Z_M + GRASP_HEIGHT_M + LIFT_HEIGHT_M - gripper_m[2]
    step_m = np.clip(0.7 * rise_m, -MAX_STEP_M, MAX_STEP_M)
    return Motion(np.array([0.0, 0.0, step_m]), rotation=grasp.rotation)


class LiftTask(Task):
    """Lift a body that stands on the counter: by default the object of the goal's name."""

    def body_to_lift(self, world: KitchenWorld) -> tuple[str, float]:
        """Return the body and its height, m."""
        return world.start.goal, OBJECTS[world.start.goal].height_m

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the body hangs above the counter."""
        body, height_m = self.body_to_lift(world)
        standing_z_m = COUNTER_TOP_Z_M + height_m / 2
        return bool(world.data.body(body).xpos[2] > standing_z_m + LIFT_M)

    def grasp(self, world: KitchenWorld) -> Grasp:
        return grasp_upright(world, *self.body_to_lift(world))

    def carry(self, world: KitchenWorld) -> Motion:
        return rise(world, self.grasp(world))


def pulled_m(world: KitchenWorld, drawer: str) -> float:
    """Return how far the drawer has come out, m."""
    return float(world.data.joint(f"drawer_{drawer}").qpos[0])


class OpenTask(Task):
    """Open the drawer that is the goal."""

    def predicate(self, world: KitchenWorld) -> bool:
        return pulled_m(world, world.start.goal) > OPEN_M

    def grasp(self, world: KitchenWorld) -> Grasp:
        drawer = world.start.goal
        return Grasp(world.data.site(f"handle_{drawer}").xpos, f"drawer_{drawer}")

    def carry(self, world: KitchenWorld) -> Motion:
        backwards_m_s = 2.0 * (pulled_m(world, world.start.goal) - PULLED_OUT_M)
        return Motion(base=np.array([np.clip(backwards_m_s, -0.2, 0.0), 0.0]))
