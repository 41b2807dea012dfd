"""What the tasks of the five groups of skills share: a counter of household objects, and how to hold them.

The groups are those of the robot experiment of *Token Turing Machines* (Ryoo et al., 2022, figure 6), which
took them from SayCan (Ahn et al., 2022) and RT-1 (Brohan et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mink import SO3

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.objects import HOUSEHOLD, add_household
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.motions import GRASP_HEIGHT_M, base_facing, gripper_start
from ttm.sim.tasks.task import NEAR, Grasp, Task

LYING = SO3.from_y_radians(np.pi / 2)
"""The rotation of an object that lies with its top away from the robot."""
NEAREST_X_M, FURTHEST_X_M, SPREAD_M = COUNTER_FRONT_X_M + 0.08, COUNTER_FRONT_X_M + 0.28, 0.5
"""Where objects lie: between these, and so far to the left and right of a middle."""
CLOSEST_M, APART_M = 0.11, 0.16
"""The least distance between two objects, and of one that is named from others."""
CORRIDOR_M = 0.14
"""Before a named object nothing stands within this distance of the line from it to the counter's front."""
TALL_M, LOWEST_M, WIDEST_M = 0.10, 0.027, 0.04
"""Lower objects than this are grasped with a pitched gripper; its lowest height above the counter; half of the most
that goes between its fingers."""
PITCH_RAD, STEEP_RAD = 0.6, 1.3
"""The gripper's pitch for low objects, and for those that lie."""


class GroupTask(Task):
    """A task in the scene of the household objects."""

    max_ticks = 120
    add_to_scene = staticmethod(add_household)


def lay_household(
    rng: np.random.Generator,
    goal: str,
    rotations: Mapping[str, SO3] | None = None,
    apart_m: float = APART_M,
) -> InitialState:
    """Draw an initial state: 4 to 8 objects on the counter, among them one like the first that the goal names.

    rotations: of those that do not stand; each is turned about the vertical besides. apart_m: the least
    distance of a named object from all others. What is not on the counter stands behind the robot.
    """
    named = goal.split(NEAR)
    others = [str(name) for name in rng.permutation(list(HOUSEHOLD)) if name not in named]
    others.sort(key=lambda name: not HOUSEHOLD[named[0]].is_like(HOUSEHOLD[name]))
    wanted = [*named, others[0], *rng.permutation(others[1:])][: rng.integers(4, 9)]
    middle_y_m, places = rng.uniform(0.0, 0.7), dict[str, np.ndarray]()
    while len(places) < 4:  # the later ones may find no place
        places.clear()
        for name in wanted * 10:
            place = rng.uniform((NEAREST_X_M, middle_y_m - SPREAD_M), (FURTHEST_X_M, middle_y_m + SPREAD_M))
            if name not in places and _is_free(name, place, places, named, apart_m):
                places[name] = place
        if not places.keys() >= set(wanted[: len(named) + 1]):
            places.clear()
    poses = {}
    for i, name in enumerate(HOUSEHOLD):
        place = places.get(name, np.array((-4.5 - 0.5 * (i % 5), -2 + 0.5 * (i // 5))))
        rotation = (rotations or {}).get(name, SO3.identity())
        poses[name] = _pose(name, place, SO3.from_z_radians(rng.uniform(-0.4, 0.4)) @ rotation)
    base = base_facing(rng, COUNTER_FRONT_X_M + 0.17, middle_y_m + rng.uniform(-0.2, 0.2))
    pan_rad, tilt_rad = rng.uniform(-0.1, 0.1, 2)
    head_rad = (pan_rad, fetch.HEAD_TILT_RAD - 0.07 + tilt_rad)
    return InitialState(goal, poses, base, gripper_start(rng), head_rad=head_rad)


def _is_free(
    name: str, place: np.ndarray, places: Mapping[str, np.ndarray], named: Sequence[str], apart_m: float
) -> bool:
    """Return whether an object may stand at a place (2,) beside those that stand already."""
    for other, there in places.items():
        (ahead_m, aside_m), spoken_of = np.abs(place - there), {name, other} & set(named)
        if np.hypot(ahead_m, aside_m) < (apart_m if spoken_of else CLOSEST_M):
            return False
        behind = name if place[0] > there[0] else other
        if behind in named and aside_m < CORRIDOR_M:
            return False
    return True


def _pose(name: str, place: np.ndarray, rotation: SO3) -> tuple[float, ...]:
    """Return the pose on the counter, or on the floor behind the robot, of an object with that rotation."""
    item, on_m = HOUSEHOLD[name], COUNTER_TOP_Z_M if place[0] > 0 else 0.0
    rotation = rotation @ item.rest
    above_m = np.abs(rotation.as_matrix()[2]) @ (*item.half_m, item.height_m / 2)
    return (*map(float, place), on_m + above_m + 0.001, *map(float, rotation.wxyz))


def _stands(axes: np.ndarray) -> bool:
    """Return whether a body with these axes, (3, 3), is rather upright than on its side."""
    return bool(abs(axes[2, 2]) > 0.7)


def above_counter_m(world: KitchenWorld, name: str) -> float:
    """Return how far above the counter the object's origin would be if it were set down as it is turned now."""
    item, stands = HOUSEHOLD[name], _stands(world.data.body(name).xmat.reshape(3, 3))
    return item.height_m / 2 if stands else item.half_m[1]


def hold(world: KitchenWorld, name: str) -> Grasp:
    """Hold an object across its width as it stands, or across its axis and from above as it lies."""
    item, body = HOUSEHOLD[name], world.data.body(name)
    axes, point_m = body.xmat.reshape(3, 3), body.xpos.copy()
    stands = _stands(axes)
    if stands:
        point_m[2] += np.clip(item.height_m / 2, LOWEST_M, GRASP_HEIGHT_M) - item.height_m / 2
        pitch_rad = 0.0 if item.height_m > TALL_M else PITCH_RAD
    else:
        point_m[2] += max(0.0, LOWEST_M - item.half_m[1])
        pitch_rad = STEEP_RAD
    along, symmetry = axes[:, 0 if stands else 2], np.pi
    if stands and max(item.half_m) < WIDEST_M:
        symmetry = np.pi / 2 if item.shape in ("box", "bag") else 1e-9
    turn_rad = np.arctan2(along[1], along[0]) - world.controller.base_pose()[2]
    turn_rad = (turn_rad + symmetry / 2) % symmetry - symmetry / 2
    rotation = SO3.from_z_radians(turn_rad) @ SO3.from_y_radians(pitch_rad)
    return Grasp(point_m, name, rotation=rotation)
