"""What a task of the kitchen is: scene, initial states, instructions, predicate, expert's wishes.

A numbered initial state is a seed. The same number always gives the same initial state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import mujoco
import numpy as np
from mink import SO3

from ttm.sim.kitchen.world import InitialState, KitchenWorld

NEAR = " near "
"""What joins the names of a goal that has two."""


@dataclass(frozen=True)
class Grasp:
    """What the expert is to hold."""

    point_m: np.ndarray
    """(3,): where the fingers shall close, in the world, m."""
    body: str
    """The body that both fingers must touch."""
    waiting_z_m: float | None = None
    """The gripper's height while the robot drives up, m. None: about that of the grasp."""
    rotation: SO3 = field(default_factory=SO3.identity)
    """That of the gripper in the base frame, which moves in along its x axis. The default points ahead."""


@dataclass(frozen=True)
class Motion:
    """One tick's motion of the robot. The default is to stand still."""

    translation_m: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """(3,): displacement of the gripper in the base frame, m."""
    base: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """(2,): forward speed (m/s) and yaw rate (rad/s) of the base."""
    rotation: SO3 = field(default_factory=SO3.identity)
    """Towards which the gripper turns, in the base frame. The default points ahead."""
    closed: bool = False
    """Whether the gripper closes although it is to hold nothing."""


class Task(ABC):
    """One kind of instruction. A task has its own file in this folder and one line in `table.py`.

    A task keeps no state from tick to tick: all methods look at the `KitchenWorld`, in which
    `world.start` is what `sample` returned, and `update` may note what happened in `world.notes`.
    """

    template: ClassVar[str]
    """The instruction, with `{}` where the goal's name, or each of its names, is inserted."""
    paraphrases: ClassVar[tuple[str, ...]] = ()
    """Other words for the template, which evaluations alone use."""
    goals: ClassVar[tuple[str, ...]]
    """The names that `InitialState.goal` may take."""
    max_ticks: ClassVar[int] = 100
    """The number of ticks (0.2 s each) after which an episode is cut off."""

    def names(self, goal: str) -> Sequence[str]:
        """Return what a goal consists of, for the template."""
        return goal.split(NEAR)

    def instruction(self, goal: str) -> str:
        return self.template.format(*self.names(goal))

    def rewordings(self, goal: str) -> tuple[str, ...]:
        """Return the instruction in the words of each of `paraphrases`."""
        return tuple(other.format(*self.names(goal)) for other in self.paraphrases)

    @property
    def instructions(self) -> tuple[str, ...]:
        """All instructions that the task may give, each one once."""
        return tuple(dict.fromkeys(self.instruction(goal) for goal in self.goals))

    def places(self, world: KitchenWorld, goal: str) -> list[np.ndarray]:
        """Return where each thing that a goal names is, (3,) m in the world. Nothing by default."""
        return []

    @staticmethod  # noqa: B027  (optional)
    def add_to_scene(scene: mujoco.MjSpec) -> None:
        """Add to the kitchen what this task alone needs. Nothing by default.

        A body with a free joint of the body's own name is placed by `InitialState.objects_m`. Tasks
        with the same function share one compiled scene.
        """

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> InitialState:
        """Draw an initial state, from `rng` alone."""

    @staticmethod
    def with_clutter(start: InitialState, most: int, rng: np.random.Generator) -> InitialState:
        """Return the same state with up to `most` more objects, in nobody's way. None by default."""
        return start

    def update(self, world: KitchenWorld) -> None:  # noqa: B027  (optional)
        """Change the scene as time goes on. Nothing by default.

        It is called when the episode begins (`world.tick` is 0, the robot stands) and after each
        tick, before the predicate is asked and the cameras are rendered. A task that changes
        `world.model` must set all that it changes when `world.tick` is 0, since the model lasts from
        episode to episode; one that moves bodies calls `mujoco.mj_forward` afterwards.
        """

    def go(self, world: KitchenWorld) -> bool:
        """Return whether the robot may act now. Until then the environment holds it (`KitchenWorld.hold`)."""
        return True

    def tick_limit(self, world: KitchenWorld) -> int:
        """Return the tick at which the present episode is cut off."""
        return self.max_ticks

    @abstractmethod
    def predicate(self, world: KitchenWorld) -> bool:
        """Return whether the simulator's state is one that was asked for."""

    def is_lost(self, world: KitchenWorld) -> bool:
        """Return whether the task cannot be solved any more, so that the episode is cut off soon."""
        return False

    @abstractmethod
    def grasp(self, world: KitchenWorld) -> Grasp | None:
        """Return what the expert should hold in the present state. None: it should hold nothing."""

    @abstractmethod
    def carry(self, world: KitchenWorld) -> Motion:
        """Return what the expert should do once it holds that, or with open fingers if it is None."""
