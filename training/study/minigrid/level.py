"""A level with a scripted expert, as a study gives it to the shared parts, and the expert's episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ttm.training.study.minigrid.environment import MinigridEnvironment, MinigridView


class GaveUp(Exception):
    """Raised by an expert that has no action for a tick; its episode is no demonstration."""


class Expert(Protocol):
    """Acts in one episode. It may know more than the agent sees."""

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """Return the action at a tick. previous_action: None at the first. May raise `GaveUp`."""


class Level(Protocol):
    """A level that can be demonstrated. It must be picklable: processes that record get it."""

    @property
    def name(self) -> str:
        """What `--level` calls it."""

    def environment(self) -> MinigridEnvironment:
        """Return a new environment. Raises `UserError` if there is no such level."""

    def expert(self, environment: MinigridEnvironment) -> Expert:
        """Return the expert for the episode that has just begun in `environment`."""


@dataclass(frozen=True)
class Demonstration:
    """One episode that the expert solved; images and directions are those before each action."""

    mission: str
    images: NDArray[np.uint8]
    """(T, 7, 7, 3)."""
    directions: NDArray[np.uint8]
    """(T,)."""
    actions: NDArray[np.uint8]
    """(T,)."""


def demonstrate(level: Level, environment: MinigridEnvironment, seed: int) -> Demonstration | None:
    """Return the expert's episode in an environment of `level`; None if it fails or gives up."""
    now = environment.reset(seed)
    expert = level.expert(environment)
    views: list[MinigridView] = []
    actions: list[int] = []
    done = over = False
    while not over:
        try:
            action = expert.act(now, actions[-1] if actions else None)
        except GaveUp:
            return None
        views.append(now)
        actions.append(action)
        now, done, over = environment.step(action)
    return _demonstration(views, actions) if done else None


def _demonstration(views: Sequence[MinigridView], actions: Sequence[int]) -> Demonstration:
    return Demonstration(
        views[0].mission,
        np.stack([view.image for view in views]),
        np.array([view.direction for view in views], np.uint8),
        np.array(actions, np.uint8),
    )
