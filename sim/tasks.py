"""Tasks: what is asked for, how an episode starts, and when it has succeeded.

A numbered initial state is a seed; evaluation uses 0, 1, 2, … and demonstrations start at
`FIRST_DEMONSTRATION_SEED`, so that no evaluated state was ever trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttm.sim.kitchen.controller import READY_POSITION_M
from ttm.sim.kitchen.scene import (
    CHEST_POSITION_M,
    COUNTER_FRONT_X_M,
    COUNTER_TOP_Z_M,
    DRAWER_Z_M,
    HANDLE_X_M,
    OBJECTS,
)

if TYPE_CHECKING:
    from ttm.sim.kitchen.env import KitchenEnv

FIRST_DEMONSTRATION_SEED = 1_000_000
LIFT_M = 0.06
"""An object counts as picked up when it hangs this far above where it stood on the counter."""
OPEN_M = 0.10
"""A drawer counts as open when it has come out this far."""
OBJECT_SPACING_M = 0.20


@dataclass(frozen=True)
class InitialState:
    """How one episode starts. Positions in m in the world, the gripper's in the base frame."""

    goal: str
    objects_m: dict[str, tuple[float, float, float]]
    base_pose: np.ndarray  # (3,): x m, y m, yaw rad
    gripper_m: np.ndarray  # (3,)


@dataclass(frozen=True)
class Task:
    """One kind of instruction. `predicate` looks at the simulator's state alone."""

    name: str
    goals: tuple[str, ...]
    template: str
    sample: Callable[[np.random.Generator], InitialState]
    predicate: Callable[[KitchenEnv], bool]
    max_ticks: int

    def instruction(self, goal: str) -> str:
        return self.template.format(goal)

    @property
    def instructions(self) -> tuple[str, ...]:
        return tuple(self.instruction(goal) for goal in self.goals)


def _parked() -> dict[str, tuple[float, float, float]]:
    """Objects that an episode does not use lie behind the robot's back, out of every camera's sight."""
    return {
        name: (-4.0, -2.0 + 0.5 * i, item.height_m / 2)
        for i, (name, item) in enumerate(OBJECTS.items())
    }


def _lay_objects(
    rng: np.random.Generator, centre_y_m: float
) -> tuple[list[str], dict[str, tuple[float, float, float]]]:
    """Three of the objects side by side on the counter, in random order."""
    chosen = [str(name) for name in rng.permutation(list(OBJECTS))[:3]]
    placed = _parked()
    for slot, name in enumerate(chosen):
        x_m = COUNTER_FRONT_X_M + rng.uniform(0.08, 0.18)
        y_m = centre_y_m + OBJECT_SPACING_M * (slot - 1) + rng.uniform(-0.02, 0.02)
        placed[name] = (x_m, y_m, COUNTER_TOP_Z_M + OBJECTS[name].height_m / 2 + 0.001)
    return chosen, placed


def _base_facing(rng: np.random.Generator, x_m: float, y_m: float) -> np.ndarray:
    """A base pose 1.2 to 1.55 m before the point, to one side of it, and turned towards it but for an error."""
    base_x_m = x_m - rng.uniform(1.2, 1.55)
    base_y_m = y_m + rng.uniform(-0.25, 0.25)
    yaw = np.arctan2(y_m - base_y_m, x_m - base_x_m) + rng.uniform(-0.15, 0.15)
    return np.array([base_x_m, base_y_m, yaw])


def _gripper_start(rng: np.random.Generator) -> np.ndarray:
    return np.array(READY_POSITION_M) + rng.uniform((0.0, -0.04, -0.03), (0.04, 0.04, 0.04))


def _sample_pick(rng: np.random.Generator) -> InitialState:
    centre_y_m = rng.uniform(0.0, 0.8)
    chosen, placed = _lay_objects(rng, centre_y_m)
    base = _base_facing(rng, COUNTER_FRONT_X_M + 0.13, centre_y_m)
    return InitialState(chosen[rng.integers(3)], placed, base, _gripper_start(rng))


def _sample_open_drawer(rng: np.random.Generator) -> InitialState:
    _, placed = _lay_objects(rng, rng.uniform(0.0, 0.8))
    base = _base_facing(rng, HANDLE_X_M, CHEST_POSITION_M[1])
    return InitialState(list(DRAWER_Z_M)[rng.integers(3)], placed, base, _gripper_start(rng))


def _picked(env: KitchenEnv) -> bool:
    item = OBJECTS[env.goal]
    return bool(env.data.body(env.goal).xpos[2] > COUNTER_TOP_Z_M + item.height_m / 2 + LIFT_M)


def _opened(env: KitchenEnv) -> bool:
    return bool(env.data.joint(f"drawer_{env.goal}").qpos[0] > OPEN_M)


TASKS = {
    task.name: task
    for task in (
        Task("pick", tuple(OBJECTS), "pick up the {}", _sample_pick, _picked, max_ticks=100),
        Task(
            "open_drawer",
            tuple(DRAWER_Z_M),
            "open the {} drawer",
            _sample_open_drawer,
            _opened,
            max_ticks=100,
        ),
    )
}
