"""An expert for MiniGrid's Memory levels, which knows where everything is.

A Memory level is a room, a corridor to its right, and a crossing with an object above and one below.
The room holds an object of one of these two kinds, the cue. The mission is to go to the object that
matches it. The agent starts in the room or in the corridor, and faces the crossing.
"""

from __future__ import annotations

from typing import Any

from minigrid.core.constants import OBJECT_TO_IDX

from ttm.training.study.minigrid.environment import MinigridEnvironment, MinigridView

LEFT, RIGHT, FORWARD = range(3)
"""Numbers of the actions that the expert takes."""
EAST, SOUTH, WEST, NORTH = range(4)
"""Directions as in `MinigridView.direction`."""
OBJECTS = tuple(OBJECT_TO_IDX[kind] for kind in ("key", "ball"))


class MemoryExpert:
    """Looks at the cue first, then goes to the matching object, by the shortest way.

    It knows the positions of agent, cue and matching object, but it does not go to the crossing
    before the cue has been in the agent's view, so that the agent can learn what it does.
    """

    def __init__(self, environment: MinigridEnvironment) -> None:
        """environment: a Memory level that has been reset."""
        self._world: Any = environment.unwrapped
        self._cue = cue_position(environment)
        self._seen = False

    def act(self, view: MinigridView, previous_action: int | None) -> int:
        """Return the action at a tick; see `Expert`."""
        self._seen = self._seen or sees(self._world, view, self._cue)
        wanted = self._way_to_the_match() if self._seen else WEST
        return turn_or_go(view.direction, wanted)

    def _way_to_the_match(self) -> int:
        """Return the direction of the next tile on the way to the matching object."""
        (x, _), (goal_x, goal_y) = self._world.agent_pos, self._world.success_pos
        if x < goal_x:
            return EAST
        return NORTH if goal_y < self._world.height // 2 else SOUTH


def cue_position(environment: MinigridEnvironment) -> tuple[int, int]:
    """Return the position of the cue, (x, y): in the room's corner, above the corridor's row."""
    return 1, environment.unwrapped.height // 2 - 1


def sees(world: Any, view: MinigridView, position: tuple[int, int]) -> bool:
    """Return whether the agent's view shows a key or a ball at a position of the map."""
    place = world.relative_coords(*position)
    return place is not None and int(view.image[place][0]) in OBJECTS


def turn_or_go(direction: int, wanted: int) -> int:
    """Return the action that leads to the tile in the direction `wanted`; half turns go left."""
    turns_right = (wanted - direction) % 4
    if turns_right == 0:
        return FORWARD
    return RIGHT if turns_right == 1 else LEFT
