"""Move one household object near another one, as in RT-1 (Brohan et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
BESIDE_M, PALM_M, FREE_M, FREE_ENOUGH_M = 0.125, 0.1, 0.15, 0.12
"""The expert puts it so far from the other; its palm is so far behind it. No third one is so near to some
place beside the other, or to the palm there: at first, and in the end."""
DIRECTIONS = np.array([(0, -1), (-0.7, -0.7), (-1, 0), (-0.7, 0.7), (0, 1)])
"""From the other object to where it may go, as the robot sees it: ahead and to the left. The arm, which comes
from the right, hides the other object least from the head in the first."""
ASIDE_M = 0.15
"""The arm stays ahead as long as the place is further aside than this, since the robot turns to it."""
CARRIED_M, HIGH_ENOUGH_M, ALIGNED_M = 0.22, 0.05, 0.03
"""It is carried so far above the counter, give or take the second, and let down so near to its place."""
CLOSEST_M, SURELY_M, ROOM_M, LOW_M, LOW_SURELY_M = 0.02, 0.02, 0.09, 0.05, 0.005
"""It is let down wherever the gap is above the first, both are near by the second, and the third is free;
below the fourth if only both are near by the fifth."""


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
        held = robot_touches(world, self.names(world.start.goal)[0])
        return self._is_set_down(world) and not held

    def _is_set_down(self, world: KitchenWorld) -> bool:
        rests = abs(above_rest_m(world, self.names(world.start.goal)[0])) < RESTS_M
        return rests and _layout(world).is_near()

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        return None if self._is_set_down(world) else hold(world, self.names(world.start.goal)[0])

    def carry(self, world: KitchenWorld) -> Motion:
        """Lift the object, bring it towards its place and set it down; once it stands there, back off."""
        robot, name = world.controller, self.names(world.start.goal)[0]
        gripper_m, rotation = robot.gripper_pose()
        grasp = self.grasp(world)
        if grasp is None:
            return Motion(rotation.apply(np.array([-0.03, 0.0, 0.0])), rotation=rotation)
        ahead = SO3.from_y_radians(grasp.rotation.as_rpy_radians().pitch)
        layout, base_m = _layout(world), robot.base_pose()[:2]
        down_m = np.array([0.0, 0.0, -above_rest_m(world, name)])
        if layout.may_stand(base_m) or (-down_m[2] < LOW_M and layout.is_near(LOW_SURELY_M)):
            return Motion(step_to(gripper_m + down_m, gripper_m), rotation=ahead)
        place_m = world.data.body(name).xpos + down_m
        place_m[:2], _ = layout.beside(base_m, FREE_ENOUGH_M)
        object_m, target_m = map(robot.to_base_frame, (world.data.body(name).xpos, place_m))
        step_m, standoff = target_m - object_m, standoff_m(grasp.rotation)
        drive, off_m = drive_to(target_m, standoff), float(np.hypot(*step_m[:2]))
        step_m[2] += CARRIED_M * np.clip((off_m - ALIGNED_M) / 0.05, 0.0, 1.0)
        if step_m[2] > HIGH_ENOUGH_M:  # first lift it over the others
            step_m[:2], drive = 0.0, np.zeros(2)
        elif is_far(target_m, standoff) or abs(target_m[1]) > ASIDE_M:  # the base does the rest
            step_m[:2] = (standoff, 0.0) - gripper_m[:2]
        return Motion(step_to(gripper_m + step_m, gripper_m), drive, ahead)


class _Layout:
    """Where the object to move, the other one and all thirds are. Points are (..., 2) in m in the world."""

    def __init__(self, goal: str, places: Mapping[str, Sequence[float] | np.ndarray]):
        names = goal.split(NEAR)
        self.moved, self.other = (np.array(places[name][:2]) for name in names)
        self.thirds = np.array([place[:2] for name, place in places.items() if name not in names])
        self.away_m = float(np.hypot(*(self.moved - self.other)))
        self.gap_m = self.away_m - sum(HOUSEHOLD[name].half_m[1] for name in names)

    def is_near(self, surely_m: float = 0.0) -> bool:
        """Return whether the two are near, by so much, and nearer than any third is to the other."""
        nearer = bool(self.away_m < self.free_m(self.other) - surely_m)
        return nearer and self.gap_m < GAP_M - surely_m

    def may_stand(self, base_m: np.ndarray) -> bool:
        """Return whether the object would be near and touch nothing if it were let down where it is."""
        apart = self.gap_m > CLOSEST_M and self.room_m(self.moved, base_m) > ROOM_M
        return bool(apart) and self.is_near(SURELY_M)

    def free_m(self, points: np.ndarray) -> np.ndarray:
        """Return how far points are from the nearest third, (...)."""
        away_m = points[..., None, :] - self.thirds
        return np.hypot(away_m[..., 0], away_m[..., 1]).min(axis=-1)

    def room_m(self, points: np.ndarray, base_m: np.ndarray) -> np.ndarray:
        """Return how free points and the palm behind them are, (...). base_m: where the robot is, (2,)."""
        ahead = self.other - base_m
        behind = points - PALM_M * ahead / np.hypot(*ahead)
        return np.minimum(self.free_m(points), self.free_m(behind))

    def beside(self, base_m: np.ndarray, enough_m: float) -> tuple[np.ndarray, float]:
        """Return where to put the object, (2,), and its room: the first with enough, or with the most."""
        ahead_x, ahead_y = ahead = (self.other - base_m) / np.hypot(*(self.other - base_m))
        turned = DIRECTIONS @ np.array([ahead, (-ahead_y, ahead_x)])
        candidates = self.other + BESIDE_M * turned
        room_m = self.room_m(candidates, base_m) * (candidates[:, 0] > COUNTER_FRONT_X_M + 0.06)
        best = int(np.minimum(room_m, enough_m).argmax())
        return candidates[best], room_m[best]


def _layout(world: KitchenWorld) -> _Layout:
    return _Layout(world.start.goal, {name: world.data.body(name).xpos for name in HOUSEHOLD})


def _has_place(start: InitialState) -> bool:
    """Return whether there is a free place beside the other object."""
    layout = _Layout(start.goal, {name: start.objects_m[name] for name in HOUSEHOLD})
    return layout.beside(start.base_pose[:2], FREE_M)[1] >= FREE_M
