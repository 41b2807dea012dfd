"""What the tasks of the memory suite share: a cue, a gap in which it is hidden, and then "go".

| ticks                          | what happens                                              |
|--------------------------------|-----------------------------------------------------------|
| 0 to `cue_ticks` - 1           | the cue is shown                                          |
| the next `gap`                 | nothing of the cue can be seen                            |
| from `cue_ticks + gap` on      | the observation says "go", and the robot may act          |

Until "go" the environment ignores actions and holds the robot still (`KitchenWorld.hold`), so that
the robot's pose does not carry the answer. Nor does the previous action that a policy sees, since it
is the one that was executed: to stand still (`InitialState.stand_still`), whatever is commanded. With
the cue left on, which is the control, the answer can be seen at every tick.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from ttm.policy.errors import UserError
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.task import Task

GAPS = (3, 15)
"""The shortest and the longest gap that `sample` draws."""
CUES = ("hidden", "left_on")
"""What becomes of the cue after it was shown."""
OPTIONS = ("gap", "cue", "right_choice")
"""The options of a reset that only these tasks know."""


@dataclass(frozen=True, kw_only=True)
class CueState(InitialState):
    """How an episode with a cue starts. `goal` is the right choice."""

    choices: tuple[str, ...]
    """What the robot can choose."""
    gap: int
    """Ticks between the cue and "go"."""
    left_on: bool = False
    """Whether the cue stays visible."""

    def with_options(self, options: Mapping[str, Any]) -> CueState:
        """Return the same state with the gap, the cue and the right choice that `options` fix.

        Raises `UserError` if one of them has no such value.
        """
        gap = options.get("gap", self.gap)
        if not isinstance(gap, int | np.integer) or gap < 0:
            raise UserError(f"gap {gap!r} must be a whole number of ticks, 0 or more")
        cue = options.get("cue", CUES[0])
        if cue not in CUES:
            raise UserError(f"cue {cue!r} does not exist; choose one of: {', '.join(CUES)}")
        goal = options.get("right_choice", self.goal)
        if goal not in self.choices:
            known = ", ".join(self.choices)
            raise UserError(f"right_choice {goal!r} is none of this state's choices: {known}")
        return replace(self, gap=int(gap), left_on=cue == "left_on", goal=goal)


def draw_gap(rng: np.random.Generator) -> int:
    """Draw a gap for `CueState`, in ticks."""
    return int(rng.integers(*GAPS, endpoint=True))


State = TypeVar("State", bound=CueState)


class CueTask(Task):
    """A task of the memory suite. `sample` returns a `CueState`.

    Success needs the right choice: the environment counts no tick as solved once the robot has
    chosen something else. The class attribute `cue_ticks` says how long the cue is shown.
    """

    cue_ticks: ClassVar[int]

    def instruction(self, goal: str) -> str:
        """Return the instruction, which does not tell the goal."""
        return self.template

    def go_tick(self, world: KitchenWorld) -> int:
        """Return the first tick at which the robot may act."""
        return self.cue_ticks + start_of(world, CueState).gap

    def go(self, world: KitchenWorld) -> bool:
        """See `Task.go`."""
        return world.tick >= self.go_tick(world)

    def tick_limit(self, world: KitchenWorld) -> int:
        """Return the tick at which the episode is cut off: `max_ticks` after "go"."""
        return self.go_tick(world) + self.max_ticks

    @abstractmethod
    def choice(self, world: KitchenWorld) -> str | None:
        """Return what the robot is choosing in the present state, or None. Asked after "go" alone.

        The first choice of an episode counts.
        """


def start_of(world: KitchenWorld, kind: type[State]) -> State:
    """Return how the present episode began, which must be of that kind."""
    assert isinstance(world.start, kind)
    return world.start
