"""minigrid's BabyAI bot as an expert; it is stopped where it would plan without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot

from ttm.training.study.minigrid.environment import VIEW, MinigridEnvironment, MinigridView
from ttm.training.study.minigrid.level import GaveUp

LONGEST_PLANNING = 100
"""How often the bot may read its plan within one tick. On levels from GoToLocal to BossLevel it
needs up to 9 reads; on some seeds (Unlock 63, GoToImpUnlock 6 and 14) it adds sub-goals and removes
them again without end."""


class PlanningTooLong(Exception):
    """Raised when the bot has read its plan too often for one action."""


class BoundedPlan(list[Any]):
    """The bot's stack of sub-goals, which counts how often its items are read.

    A limit on the reads stops the bot at the same place in every run; a limit on the time would
    not.
    """

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        """Count the read. Raises `PlanningTooLong` if `reads` exceeds `LONGEST_PLANNING`."""
        self.reads += 1
        if self.reads > LONGEST_PLANNING:
            raise PlanningTooLong
        return super().__getitem__(index)


class BoundedBot(BabyAIBot):
    """minigrid's bot, which gives up instead of planning without end.

    Its actions are those of the original; two of its methods are faster.
    """

    def __init__(self, environment: MinigridEnvironment) -> None:
        """environment: must have been reset."""
        super().__init__(environment.unwrapped)
        self.stack: BoundedPlan = BoundedPlan(self.stack)
        self._image = np.zeros((VIEW, VIEW, 3), np.uint8)

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """Return the action at a tick. previous_action: None at the first.

        Raises `GaveUp` if the bot does not stop planning, or raises an error.
        """
        self.stack.reads = 0
        self._image = view.image
        try:
            return int(self.replan(previous_action))
        except Exception as error:  # the bot gives up by assertions and by errors of many kinds
            raise GaveUp from error

    def _process_obs(self) -> None:
        """Mark the visible tiles of the map from the view, which the original renders again."""
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
        """Search as the original does, without its copy of the whole queue at every step."""
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
            # The tile that is reached without a turn comes first.
            for k, m in ((di, dj), (dj, di), (-dj, -di), (-di, -dj)):
                queue.append(((i + k, j + m, k, m), (i, j)))
        return None, None, came_from


def _passable(cell: Any, ignore_blockers: bool) -> bool:
    """Return whether the search goes on from this tile; None is an empty one."""
    if cell is None:
        return True
    if cell.type == "wall":
        return False
    if cell.type == "door":
        return bool(cell.is_open)
    return ignore_blockers


def _path(end: Any, came_from: dict[Any, Any]) -> list[Any]:
    """Return the places from `end` back to where the search began."""
    path = []
    place = end
    while place:
        path.append(place)
        place = came_from[place]
    return path
