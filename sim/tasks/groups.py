"""What the tasks of the five groups of skills share: a counter of household objects, and how to hold them.

The groups are those of the robot experiment of *Token Turing Machines* (Ryoo et al., 2022, figure 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
NEAREST_X_M, FURTHEST_X_M, SPREAD_M = COUNTER_FRONT_X_M + 0.08, COUNTER_FRONT_X_M + 0.23, 0.55
"""Objects lie between the two, and no further than the third from a middle to the left and right."""
STANDING_M, NAMED_APART_M, CORRIDOR_M = 0.055, 0.05, 0.14
"""The space around what stands, what is added for a named object, and that beside the way to a named one."""
LIES = 0.2
"""The portion of the objects that are not named, and can be knocked over, that lie."""
ADDED_M, LEAST_M, MOST_TRIES = (0.05, 0.25), (NEAREST_X_M, -0.5), 20
"""Clutter lies no further beyond the other objects, and not before the second; so often a place is drawn."""
MOST_LOOKS, SEEN_RAD = 20, 0.42
"""So often at most the head is drawn anew, until what is named is no further than this from its middle."""
TALL_M, LOWEST_M, WIDEST_M = 0.11, 0.027, 0.04
"""Lower objects are held with a pitched gripper; the lowest place for it; half of what it spans at most."""
PITCH_RAD, STEEP_RAD = 0.6, 1.3
"""The gripper's pitch for low objects, and for those that lie."""


def add_clutter(start: InitialState, most: int, rng: np.random.Generator) -> InitialState:
    """Return the same state with up to `most` more objects on the counter, as far as they find room."""
    poses = {name: pose for name, pose in start.objects_m.items() if len(pose) > 1}
    rotations = {name: SO3(np.array(pose[3:] or (1, 0, 0, 0))) for name, pose in poses.items()}
    named = start.goal.split(NEAR)
    space_m = _space_m(rotations, named)
    places = {name: np.array(pose[:2]) for name, pose in poses.items() if pose[0] > 0}
    there_m, added = np.array(list(places.values())), dict[str, tuple[float, ...]]()
    low_m, high_m = there_m.min(axis=0) - ADDED_M, there_m.max(axis=0) + ADDED_M
    for name in map(str, rng.permutation(sorted(poses.keys() - places.keys()))):
        for place in rng.uniform(np.maximum(low_m, LEAST_M), high_m, (MOST_TRIES, 2)):
            if len(added) < most and _has_room(name, place, places, space_m, named):
                _, _, z_m, *rotation = poses[name]
                places[name] = place
                added[name] = (*map(float, place), COUNTER_TOP_Z_M + z_m, *rotation)
                break
    return replace(start, objects_m={**start.objects_m, **added})


def _space_m(rotations: Mapping[str, SO3], named: Sequence[str]) -> dict[str, float]:
    """Return the space around each object. named: those of the goal."""
    return {
        name: NAMED_APART_M * (name in named)
        + (STANDING_M if _stands(axes.as_matrix()) else HOUSEHOLD[name].height_m / 2)
        for name, axes in rotations.items()
    }


def _has_room(
    name: str,
    place: np.ndarray,
    places: Mapping[str, np.ndarray],
    space_m: Mapping[str, float],
    named: Sequence[str],
) -> bool:
    for other, there in places.items():
        ahead_m, aside_m = np.abs(place - there)
        in_the_way = aside_m < CORRIDOR_M and (name if place[0] > there[0] else other) in named
        if in_the_way or np.hypot(ahead_m, aside_m) < space_m[name] + space_m[other]:
            return False
    return True


class GroupTask(Task):
    """A task in the scene of the household objects."""

    max_ticks = 120
    add_to_scene = staticmethod(add_household)
    with_clutter = staticmethod(add_clutter)

    def places(self, world: KitchenWorld, goal: str) -> list[np.ndarray]:
        return [world.data.body(name).xpos for name in self.names(goal)]

    def is_lost(self, world: KitchenWorld) -> bool:
        """Return whether an object that the goal names has fallen from the counter."""
        named = HOUSEHOLD.keys() & set(self.names(world.start.goal))
        return any(world.data.body(name).xpos[2] < COUNTER_TOP_Z_M for name in named)


def lay_household(
    rng: np.random.Generator, goal: str, rotations: Mapping[str, SO3] | None = None
) -> InitialState:
    """Draw an initial state: 4 to 8 objects on the counter, one of them like the first that the goal names.

    rotations: of those that do not stand; each is turned about the vertical besides. What is not on the
    counter stands behind the robot.
    """
    named, turned = goal.split(NEAR), {name: item.rest for name, item in HOUSEHOLD.items()}
    others = [str(name) for name in rng.permutation(list(HOUSEHOLD)) if name not in named]
    first = HOUSEHOLD[named[0]]
    alike = [name for name in others if first.is_like(HOUSEHOLD[name])][:1]
    wanted = list(dict.fromkeys([*named, *alike, *others]))[: rng.integers(4, 9)]
    for name in wanted[len(named) :]:
        if HOUSEHOLD[name].topples and rng.random() < LIES:
            turned[name] = LYING
    turned |= rotations or {}
    space_m = _space_m(turned, named)
    middle_y_m, places = rng.uniform(0.0, 0.7), dict[str, np.ndarray]()
    low, high = (NEAREST_X_M, middle_y_m - SPREAD_M), (FURTHEST_X_M, middle_y_m + SPREAD_M)
    while not {*named, *wanted[:4]} <= places.keys():  # the last ones may find no room
        places = {}
        for name in wanted * 10:
            place = rng.uniform(low, high)
            if name not in places and _has_room(name, place, places, space_m, named):
                places[name] = place
    poses = {}
    for i, (name, rotation) in enumerate(turned.items()):
        x_m, y_m = places.get(name, np.array((-4.5 - 0.5 * (i % 5), -2 + 0.5 * (i // 5))))
        rotation = SO3.from_z_radians(rng.uniform(-0.4, 0.4)) @ rotation
        z_m = _above_m(name, rotation.as_matrix()) + 0.001 + COUNTER_TOP_Z_M * (name in places)
        poses[name] = (float(x_m), float(y_m), float(z_m), *map(float, rotation.wxyz))
    for _ in range(MOST_LOOKS):
        base = base_facing(rng, COUNTER_FRONT_X_M + 0.17, middle_y_m + rng.uniform(-0.2, 0.2))
        head_rad = rng.uniform(
            (-0.1, fetch.HEAD_TILT_RAD - 0.17), (0.1, fetch.HEAD_TILT_RAD + 0.03)
        )
        ahead_m, aside_m = (np.array([places[name] for name in named]) - base[:2]).T
        if (np.abs(np.arctan2(aside_m, ahead_m) - base[2] - head_rad[0]) < SEEN_RAD).all():
            break
    return InitialState(goal, poses, base, gripper_start(rng), head_rad=tuple(head_rad.tolist()))


def _stands(axes: np.ndarray) -> bool:
    """Return whether an object with these axes, (3, 3), is rather upright than on its side."""
    return bool(abs(axes[2, 2]) > 0.7)


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
    if _stands(axes):
        tall = item.height_m > TALL_M
        height_m = GRASP_HEIGHT_M if tall else max(item.height_m / 2, LOWEST_M)
        point_m[2] += height_m - item.height_m / 2
        pitch_rad = 0.0 if tall else PITCH_RAD
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
