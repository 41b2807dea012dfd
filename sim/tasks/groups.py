"""What the tasks of the five groups of skills share: a counter of household objects, and how to hold them.

The groups are those of the robot experiment of *Token Turing Machines* (Ryoo et al., 2022, figure 6), after SayCan
(Ahn et al., 2022) and RT-1 (Brohan et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Objects lie between the two, and no further than the third from a middle to the left and right."""
STANDING_M, NAMED_APART_M = 0.055, 0.05
"""The space around the middle of an object that stands, and what is added for one that is named."""
CORRIDOR_M = 0.14
"""Before a named object nothing stands within this distance of the line from it to the counter's front."""
LIES = 0.2
"""The portion of the objects that can be knocked over, and are not named, that lie."""
TALL_M, LOWEST_M, WIDEST_M = 0.10, 0.027, 0.04
"""Lower objects are held with a pitched gripper; the lowest place for it; half of what it spans at most."""
PITCH_RAD, STEEP_RAD = 0.6, 1.3
"""The gripper's pitch for low objects, and for those that lie."""


class GroupTask(Task):
    """A task in the scene of the household objects."""

    max_ticks = 120
    add_to_scene = staticmethod(add_household)

    def is_lost(self, world: KitchenWorld) -> bool:
        """Return whether an object that the goal names has fallen from the counter."""
        named = HOUSEHOLD.keys() & set(self.names(world.start.goal))
        return any(world.data.body(name).xpos[2] < COUNTER_TOP_Z_M for name in named)


def lay_household(
    rng: np.random.Generator, goal: str, rotations: Mapping[str, SO3] | None = None
) -> InitialState:
    """Draw an initial state: 4 to 8 objects on the counter, among them one like the first that the goal names.

    rotations: of those that do not stand; each is turned about the vertical besides. What is not on the counter
    stands behind the robot.
    """
    named, rotations = goal.split(NEAR), dict(rotations or {})
    others = [str(name) for name in rng.permutation(list(HOUSEHOLD)) if name not in named]
    alike = next(name for name in others if HOUSEHOLD[named[0]].is_like(HOUSEHOLD[name]))
    wanted = list(dict.fromkeys([*named, alike, *others]))[: rng.integers(4, 9)]
    for name in wanted[len(named) :]:
        if HOUSEHOLD[name].topples and rng.random() < LIES:
            rotations[name] = LYING
    middle_y_m, places = rng.uniform(0.0, 0.7), dict[str, np.ndarray]()
    low, high = (NEAREST_X_M, middle_y_m - SPREAD_M), (FURTHEST_X_M, middle_y_m + SPREAD_M)
    while len(places) < 4 or not {*named, alike} <= places.keys():  # the last ones may find no room
        places = {}
        for name in wanted * 10:
            place = rng.uniform(low, high)
            if name not in places and _has_room(name, place, places, named, rotations):
                places[name] = place
    poses = {}
    for i, name in enumerate(HOUSEHOLD):
        place = places.get(name, np.array((-4.5 - 0.5 * (i % 5), -2 + 0.5 * (i // 5))))
        turned = rotations.get(name, SO3.identity()) @ HOUSEHOLD[name].rest
        turned = SO3.from_z_radians(rng.uniform(-0.4, 0.4)) @ turned
        z_m = (
            (COUNTER_TOP_Z_M if name in places else 0.0)
            + 0.001
            + _above_m(name, turned.as_matrix())
        )
        poses[name] = (*map(float, place), z_m, *map(float, turned.wxyz))
    base = base_facing(rng, COUNTER_FRONT_X_M + 0.17, middle_y_m + rng.uniform(-0.2, 0.2))
    pan_rad, tilt_rad = rng.uniform(-0.1, 0.1, 2)
    head_rad = (float(pan_rad), float(fetch.HEAD_TILT_RAD - 0.07 + tilt_rad))
    return InitialState(goal, poses, base, gripper_start(rng), head_rad=head_rad)


def _has_room(
    name: str,
    place: np.ndarray,
    places: Mapping[str, np.ndarray],
    named: list[str],
    rotations: Mapping[str, SO3],
) -> bool:
    """Return whether an object may be at a place (2,) beside those that have theirs."""

    def space_m(one: str) -> float:
        lies = one in rotations or HOUSEHOLD[one].shape == "bent"
        return (HOUSEHOLD[one].height_m / 2 if lies else STANDING_M) + NAMED_APART_M * (
            one in named
        )

    for other, there in places.items():
        ahead_m, aside_m = np.abs(place - there)
        behind = name if place[0] > there[0] else other
        in_the_way = behind in named and aside_m < CORRIDOR_M
        if in_the_way or np.hypot(ahead_m, aside_m) < space_m(name) + space_m(other):
            return False
    return True


def _above_m(name: str, axes: np.ndarray) -> float:
    """Return how far the origin of an object with these axes, (3, 3), is above what it stands or lies on."""
    half_m = (*HOUSEHOLD[name].half_m, HOUSEHOLD[name].height_m / 2)
    return half_m[int(np.abs(axes[2]).argmax())]


def above_rest_m(world: KitchenWorld, name: str) -> float:
    """Return how far an object is above where it would rest on the counter, turned as it is now."""
    body = world.data.body(name)
    return float(body.xpos[2]) - COUNTER_TOP_Z_M - _above_m(name, body.xmat.reshape(3, 3))


def hold(world: KitchenWorld, name: str) -> Grasp:
    """Hold an object across its width as it stands, or across its axis and from above as it lies."""
    item, body = HOUSEHOLD[name], world.data.body(name)
    axes, point_m, symmetry = body.xmat.reshape(3, 3), body.xpos.copy(), np.pi
    if abs(axes[2, 2]) > 0.7:
        point_m[2] += np.clip(item.height_m / 2, LOWEST_M, GRASP_HEIGHT_M) - item.height_m / 2
        pitch_rad = 0.0 if item.height_m > TALL_M else PITCH_RAD
        along_x, along_y, _ = axes[:, 0]
        if max(item.half_m) < WIDEST_M:  # it can be held from any side, or from four
            symmetry = np.pi / 2 if item.shape in ("box", "bag") else 1e-9
    else:
        point_m[2] += max(0.0, LOWEST_M - _above_m(name, axes))
        pitch_rad = STEEP_RAD
        along_x, along_y, _ = axes[:, 2]
    turn_rad = np.arctan2(along_y, along_x) - world.controller.base_pose()[2]
    turn_rad = (turn_rad + symmetry / 2) % symmetry - symmetry / 2
    return Grasp(
        point_m, name, rotation=SO3.from_z_radians(turn_rad) @ SO3.from_y_radians(pitch_rad)
    )
