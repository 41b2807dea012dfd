"""Move one household object near another one, as in RT-1 (Brohan et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np
from mink import SO3

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld, robot_touches
from ttm.sim.tasks.groups import GroupTask, above_rest_m, add_clutter, hold, lay_household
from ttm.sim.tasks.motions import drive_to, is_far, standoff_m, step_to
from ttm.sim.tasks.task import NEAR, Grasp, Motion

GAP_M, RESTS_M = 0.10, 0.008
"""The most between what is near (SIMPLER, Li et al., 2024), and between the counter and what rests on it."""
FAR_M = 0.28
"""At first the two are further apart than this."""
BESIDE_M, FREE_M, PALM_M = 0.125, 0.15, 0.1
"""The expert puts it this far from the other, with no third one so near to it or to the palm behind it."""
DIRECTIONS = np.array([(0, 1), (0, -1), (-0.7, 0.7), (-0.7, -0.7), (-1, 0)])
"""From the other object to where it may go, as the robot sees it: ahead and to the left."""
ASIDE_M = 0.15
"""The arm stays ahead as long as the place is further aside than this, since the robot turns to it."""
CARRIED_M, HIGH_ENOUGH_M, ALIGNED_M = 0.22, 0.05, 0.012
"""It is carried so far above the counter, give or take the second, and let down so near to its place."""


class MoveNear(GroupTask):
    """Grasp the first object, carry it beside the second, and set it down there."""

    template = "move the {} near the {}"
    paraphrases = ("put the {} next to the {}", "bring the {} close to the {}")
    goals = tuple(NEAR.join(pair) for pair in permutations(HOUSEHOLD, 2))
    max_ticks = 150

    def sample(self, rng: np.random.Generator) -> InitialState:
        goal = str(rng.choice(self.goals))
        while True:
            start = lay_household(rng, goal)
            moved, other = (np.array(start.objects_m[name][:2]) for name in self.names(goal))
            if np.hypot(*(moved - other)) > FAR_M and _has_place(start):
                return start

    @staticmethod
    def with_clutter(start: InitialState, most: int, rng: np.random.Generator) -> InitialState:
        """Return it with fewer, if there is no place beside the other object any more."""
        fewer = (add_clutter(start, more, rng) for more in range(most, 0, -1))
        return next(filter(_has_place, fewer), start)

    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the object rests on the counter, let go of, nearer to the other than any third."""
        moved, _ = self.names(world.start.goal)
        return self._is_set_down(world) and not robot_touches(world, moved)

    def _is_set_down(self, world: KitchenWorld) -> bool:
        moved, other = self.names(world.start.goal)
        place, there = (world.data.body(name).xpos[:2] for name in (moved, other))
        near_m = GAP_M + HOUSEHOLD[moved].half_m[1] + HOUSEHOLD[other].half_m[1]
        away_m = np.hypot(*(place - there))
        if away_m >= near_m or abs(above_rest_m(world, moved)) >= RESTS_M:
            return False
        return bool(away_m < _free_m(there, world.start.goal, _places(world)))

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        return None if self._is_set_down(world) else hold(world, self.names(world.start.goal)[0])

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift the object, bring it above its place and set it down; once it stands there, back off."""
        robot, name = world.controller, self.names(world.start.goal)[0]
        gripper_m, rotation = robot.gripper_pose()
        grasp = self.grasp(world)
        if grasp is None:
            return Motion(rotation.apply(np.array([-0.03, 0.0, 0.0])), rotation=rotation)
        place_m = world.data.body(name).xpos - (0.0, 0.0, above_rest_m(world, name))
        place_m[:2], _ = _beside(world.start, _places(world), robot.base_pose()[:2])
        object_m, target_m = map(robot.to_base_frame, (world.data.body(name).xpos, place_m))
        step_m, standoff = target_m - object_m, standoff_m(grasp.rotation)
        drive, off_m = drive_to(target_m, standoff), float(np.hypot(*step_m[:2]))
        step_m[2] += CARRIED_M * np.clip((off_m - ALIGNED_M) / 0.04, 0.0, 1.0)
        if step_m[2] > HIGH_ENOUGH_M:  # first lift it over the others
            step_m[:2], drive = 0.0, np.zeros(2)
        elif is_far(target_m, standoff) or abs(target_m[1]) > ASIDE_M:  # the base does the rest
            step_m[:2] = (standoff, 0.0) - gripper_m[:2]
        ahead = SO3.from_y_radians(grasp.rotation.as_rpy_radians().pitch)
        return Motion(step_to(gripper_m + step_m, gripper_m), drive, ahead)


def _places(world: KitchenWorld) -> dict[str, np.ndarray]:
    """Return where each object is now, (2,) m in the world."""
    return {name: world.data.body(name).xpos[:2] for name in HOUSEHOLD}


def _free_m(points: np.ndarray, goal: str, places: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return how far points, (..., 2), are from the nearest object that the goal does not name, (...)."""
    named = goal.split(NEAR)
    others = np.array([there for name, there in places.items() if name not in named])
    away_m = points[..., None, :] - others
    return np.hypot(away_m[..., 0], away_m[..., 1]).min(axis=-1)


def _has_place(start: InitialState) -> bool:
    """Return whether there is a free place beside the other object."""
    places = {name: np.array(pose[:2]) for name, pose in start.objects_m.items()}
    return _beside(start, places, start.base_pose[:2])[1] >= FREE_M


def _beside(
    start: InitialState, places: Mapping[str, np.ndarray], base_m: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return where to put the object, (2,), and how free that is: of the freest the nearest to its start.

    base_m: (2,), where the robot stands. Its gripper comes from there, so that the way must be free, too.
    """
    moved, other = start.goal.split(NEAR)
    ahead_x, ahead_y = ahead = (places[other] - base_m) / np.hypot(*(places[other] - base_m))
    candidates = places[other] + BESIDE_M * DIRECTIONS @ np.array([ahead, (-ahead_y, ahead_x)])
    passed = np.stack([candidates, candidates - PALM_M * ahead])
    free_m = np.minimum(FREE_M, _free_m(passed, start.goal, places).min(axis=0))
    free_m *= candidates[:, 0] > COUNTER_FRONT_X_M + 0.06
    away_m = np.hypot(*(candidates - start.objects_m[moved][:2]).T)
    best = np.lexsort((away_m, -np.round(free_m, 2)))[0]
    return candidates[best], free_m[best]
