"""Levels of the optional package `minigrid` (Chevalier-Boisvert et al. 2023)."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import gymnasium
import minigrid  # registers the levels with gymnasium
import numpy as np
from numpy.typing import NDArray

VIEW = 7
"""Side of the square that the agent sees, in tiles."""
NUM_ACTIONS = 7
"""Left, right, forward, pick up, drop, toggle, done."""


@dataclass(frozen=True)
class MinigridView:
    """What a MiniGrid environment shows the agent before an action."""

    image: NDArray[np.uint8]
    """(7, 7, 3): object, colour and state of every tile that the agent sees, in minigrid's numbers.
    """
    direction: int
    """0 to 3, clockwise; 0 is to the right of the map."""
    mission: str
    """The instruction in English; it is the same for a whole episode."""


class MinigridEnvironment:
    """A level of MiniGrid. The seed given to `reset` and the actions determine everything."""

    def __init__(self, name: str, **options: Any) -> None:
        """name: gymnasium's id of the level, such as "BabyAI-GoToLocal-v0".

        options: values for its arguments, instead of those that it is registered with.
        """
        self.unwrapped: Any = gymnasium.make(name, disable_env_checker=True, **options).unwrapped

    @property
    def max_steps(self) -> int:
        """Number of ticks after which the episode ends as failed; it may depend on the mission."""
        return int(self.unwrapped.max_steps)

    def reset(self, seed: int) -> MinigridView:
        """Begin a new episode."""
        # minigrid prints every layout that it draws and rejects.
        with contextlib.redirect_stdout(io.StringIO()):
            values, _ = self.unwrapped.reset(seed=seed)
        return _view(values)

    def step(self, action: int) -> tuple[MinigridView, bool, bool]:
        """Return the next view, whether the mission succeeded, and whether the episode is over."""
        values, reward, terminated, truncated, _ = self.unwrapped.step(action)
        return _view(values), reward > 0, terminated or truncated


def minigrid_version() -> str:
    """Return the version of minigrid; levels and bots may change from one version to the next."""
    return str(minigrid.__version__)


def _view(values: dict[str, Any]) -> MinigridView:
    return MinigridView(values["image"], int(values["direction"]), str(values["mission"]))
