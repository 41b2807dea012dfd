"""Demonstrations by minigrid's BabyAI bot, which sometimes plans for ever: here it is stopped.

This module needs minigrid; `babyai_level.minigrid_version` says so to those who do not have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot
from numpy.typing import NDArray

from ttm.training.study.babyai.level import VIEW, BabyaiEnvironment, Observation

LONGEST_PLANNING = 100
"""Looks at the plan's top within one tick. On levels from GoToLocal to BossLevel the bot needs up to 9; on some seeds
(Unlock 63, GoToImpUnlock 6 and 14) it puts sub-goals on the plan and takes them off again without end."""


@dataclass(frozen=True)
class Demonstration:
    """One episode that the bot solved. `images` and `directions` are what it saw before each action."""

    mission: str
    images: NDArray[np.uint8]
    """(T, 7, 7, 3)."""
    directions: NDArray[np.uint8]
    """(T,)."""
    actions: NDArray[np.uint8]
    """(T,)."""


class PlanningTooLong(Exception):
    """The bot has looked at its plan's top too often for one action."""


class BoundedPlan(list[Any]):
    """The bot's stack of sub-goals, which counts looks at its items. A clock would do too, but not repeatably."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        """As a list's; `PlanningTooLong` after `LONGEST_PLANNING` since `looks` was last set to 0."""
        self.looks += 1
        if self.looks > LONGEST_PLANNING:
            raise PlanningTooLong
        return super().__getitem__(index)


class BoundedBot(BabyAIBot):
    """minigrid's bot, which raises `PlanningTooLong` instead of planning for ever. It acts the same, and sooner."""

    def __init__(self, environment: BabyaiEnvironment) -> None:
        """environment: just reset."""
        super().__init__(environment.unwrapped)
        self.stack: BoundedPlan = BoundedPlan(self.stack)
        self._image = np.zeros((VIEW, VIEW, 3), np.uint8)

    def act(self, observation: Observation, previous_action: int | None) -> int:
        """The action at a tick. previous_action: None at the first."""
        self.stack.looks = 0
        self._image = observation.image
        return int(self.replan(previous_action))

    def _process_obs(self) -> None:
        """Notes which tiles of the map have been seen: from the observation, where the original draws it anew."""
        world = self.mission.unwrapped
        across, ahead = np.nonzero(self._image[..., 0])  # object 0: not visible
        forward, right = (
            np.asarray(vector)[:, None] for vector in (world.dir_vec, world.right_vec)
        )
        corner = np.asarray(world.agent_pos)[:, None] + forward * (VIEW - 1) - right * (VIEW // 2)
        x, y = corner - forward * ahead + right * across
        inside = (x >= 0) & (x < world.width) & (y >= 0) & (y < world.height)
        self.vis_mask[x[inside], y[inside]] = True

    def _breadth_first_search(
        self, initial_states: Sequence[Any], accept_fn: Callable[..., bool], ignore_blockers: bool
    ) -> tuple[Any, Any, dict[Any, Any]]:
        """The original's, without its copy of the whole queue for each place that is looked at."""
        queue: deque[tuple[Any, Any]] = deque((state, None) for state in initial_states)
        grid = self.mission.unwrapped.grid
        came_from: dict[Any, Any] = {}
        while queue:
            (i, j, di, dj), before = queue.popleft()
            if (i, j) in came_from:
                continue
            came_from[i, j] = before
            cell = grid.get(i, j)
            if accept_fn((i, j), cell):
                return _path((i, j), came_from), (i, j), came_from
            if not self.vis_mask[i, j] or not _passable(cell, ignore_blockers):
                continue
            # What is reached without a turn comes first.
            for k, m in ((di, dj), (dj, di), (-dj, -di), (-di, -dj)):
                queue.append(((i + k, j + m, k, m), (i, j)))
        return None, None, came_from


def demonstrate(environment: BabyaiEnvironment, seed: int) -> Demonstration | None:
    """The bot's episode; None if it does not solve it, does not end its planning, or fails with an error."""
    now = environment.reset(seed)
    bot = BoundedBot(environment)
    seen: list[Observation] = []
    actions: list[int] = []
    done = over = False
    while not over:
        try:
            action = bot.act(now, actions[-1] if actions else None)
        except Exception:  # the bot gives up by failed assertions, and by errors of many kinds
            return None
        seen.append(now)
        actions.append(action)
        now, done, over = environment.step(action)
    return _demonstration(seen, actions) if done else None


def _passable(cell: Any, ignore_blockers: bool) -> bool:
    """Whether the search goes on from this tile; None is an empty one."""
    if cell is None:
        return True
    if cell.type == "wall":
        return False
    if cell.type == "door":
        return bool(cell.is_open)
    return ignore_blockers


def _path(end: Any, came_from: dict[Any, Any]) -> list[Any]:
    """From `end` back to where the search began."""
    path = []
    place = end
    while place:
        path.append(place)
        place = came_from[place]
    return path


def _demonstration(seen: Sequence[Observation], actions: Sequence[int]) -> Demonstration:
    return Demonstration(
        seen[0].mission,
        np.stack([observation.image for observation in seen]),
        np.array([observation.direction for observation in seen], np.uint8),
        np.array(actions, np.uint8),
    )
