"""The levels of BabyAI (Chevalier-Boisvert et al. 2019) from the optional package `minigrid`."""

from __future__ import annotations

import contextlib
import difflib
import io
from dataclasses import dataclass
from typing import Any

import gymnasium
import minigrid  # registers the levels with gymnasium
import numpy as np
from numpy.typing import NDArray

from ttm.policy.errors import UserError

PREFIX = "BabyAI-"
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


class BabyaiEnvironment:
    """A level of BabyAI. The seed given to `reset` and the actions determine everything."""

    def __init__(self, level: str) -> None:
        """level: a name such as "GoToLocal". Raises `UserError` if there is no such level."""
        self.unwrapped: Any = gymnasium.make(
            environment_id(level), disable_env_checker=True
        ).unwrapped

    @property
    def max_steps(self) -> int:
        """Number of ticks after which the episode ends as failed; it depends on the mission."""
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


def environment_id(level: str) -> str:
    """Return gymnasium's id of a level, the newest version: `GoToLocal` -> `BabyAI-GoToLocal-v0`.

    Raises `UserError` with the most similar names if there is no such level.
    """
    levels = _levels()
    if level not in levels:
        near = difflib.get_close_matches(level, levels, n=3, cutoff=0.3)
        hint = (
            f"the nearest are {', '.join(near)}"
            if near
            else f"there are {', '.join(sorted(levels))}"
        )
        raise UserError(f"--level is '{level}', which BabyAI does not have; {hint}")
    return levels[level]


def minigrid_version() -> str:
    """Return the version of minigrid; levels and bot may change from one version to the next."""
    return str(minigrid.__version__)


def _levels() -> dict[str, str]:
    """Return level -> the id of its newest version."""
    ids = sorted(name for name in gymnasium.registry if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX).rpartition("-v")[0]: name for name in ids}


def _view(values: dict[str, Any]) -> MinigridView:
    return MinigridView(values["image"], int(values["direction"]), str(values["mission"]))
