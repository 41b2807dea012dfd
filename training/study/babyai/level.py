"""The levels of BabyAI (Chevalier-Boisvert et al. 2019) as `minigrid` has them, an optional extra."""

from __future__ import annotations

import contextlib
import difflib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttm.policy.errors import UserError

PREFIX = "BabyAI-"
INSTALL = "pip install 'minigrid>=3,<4'"
VIEW = 7
"""Tiles of the square that the agent sees, along its side."""
NUM_ACTIONS = 7
"""Left, right, forward, pick up, drop, toggle, done."""


@dataclass(frozen=True)
class Observation:
    """What the agent is given at a tick."""

    image: NDArray[np.uint8]
    """(7, 7, 3): object, colour and state of every tile that it sees, as minigrid numbers them."""
    direction: int
    """0 to 3, clockwise from the right of the map."""
    mission: str
    """In English; the same for a whole episode."""


class BabyaiEnvironment:
    """One level. Everything that happens is settled by the seed of `reset` and by the actions."""

    def __init__(self, level: str) -> None:
        """level: `UserError` names the nearest ones if there is none of that name, or says how to get minigrid."""
        import gymnasium  # here, since `ttm --help` loads this module

        self.unwrapped: Any = gymnasium.make(
            environment_id(level), disable_env_checker=True
        ).unwrapped

    @property
    def max_steps(self) -> int:
        """Ticks after which the episode counts as failed; it depends on the mission."""
        return int(self.unwrapped.max_steps)

    def reset(self, seed: int) -> Observation:
        """A new episode."""
        # minigrid prints each layout that it draws and does not want.
        with contextlib.redirect_stdout(io.StringIO()):
            values, _ = self.unwrapped.reset(seed=seed)
        return _observation(values)

    def step(self, action: int) -> tuple[Observation, bool, bool]:
        """The next observation, whether the mission is done, and whether the episode is over."""
        values, reward, terminated, truncated, _ = self.unwrapped.step(action)
        return _observation(values), reward > 0, terminated or truncated


def environment_id(level: str) -> str:
    """`GoToLocal` -> `BabyAI-GoToLocal-v0`, of several versions the newest; see `BabyaiEnvironment`."""
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
    """Levels and bot may differ from one to another. `UserError` if it is not installed."""
    try:
        import minigrid
    except ImportError as error:
        raise UserError(
            f"`ttm study babyai` needs minigrid, which is not installed; install it: {INSTALL}"
        ) from error
    return str(minigrid.__version__)


def _levels() -> dict[str, str]:
    """Short name -> the newest id of that name."""
    import gymnasium

    minigrid_version()  # importing it registers them
    ids = sorted(name for name in gymnasium.registry if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX).rpartition("-v")[0]: name for name in ids}


def _observation(values: dict[str, Any]) -> Observation:
    return Observation(values["image"], int(values["direction"]), str(values["mission"]))
