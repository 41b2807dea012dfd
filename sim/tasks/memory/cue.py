"""What the tasks of the memory suite share: a cue, a gap in which it is hidden, and then "go".

| ticks                          | what happens                                              |
|--------------------------------|-----------------------------------------------------------|
| 0 to `cue_tick` - 1            | decoys, if there are any: cues that do not count          |
| the next `cue_ticks`           | the cue is shown                                          |
| the next `gap`                 | nothing of the cue can be seen                            |
| from then on                   | the observation says "go", and the robot may act          |

Until "go" the environment ignores actions and holds the robot still (`KitchenWorld.hold`), so that
the robot's pose does not carry the answer. Nor does the previous action that a policy sees, since it
is the one that was executed: to stand still (`InitialState.stand_still`), whatever is commanded. With
the cue left on, which is the control, the answer can be seen at every tick from the cue on.

Of several cues the last one counts. The variation "decoy" draws those before it, each followed by a blank
of 1 to `MOST_BLANK` ticks:

| level | decoys           | ticks of each    |
|-------|------------------|------------------|
| 0     | 0                |                  |
| 1     | 0 or 1           | `cue_ticks`      |
| 2     | 1 or 2           | 1 to `cue_ticks` |
| 3     | 1 to 3           | 1 to `cue_ticks` |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, get_args

import mujoco
import numpy as np

from ttm.policy.errors import UserError, require_choice
from ttm.sim.condition import CueName
from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.scene import CHEST_POSITION_M, COUNTER_TOP_Z_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.task import Task

GAPS = (3, 15)
"""The shortest and the longest gap that `sample` draws."""
CUES: tuple[CueName, ...] = get_args(CueName)
"""What becomes of the cue after it was shown; "held_out" is hidden too, and `CueState.held_out`."""
MOST_BLANK = 3
OPTIONS = ("gap", "cue", "right_choice")
"""The options of a reset that only these tasks know."""
NEAR_M = 0.09
"""The gripper chooses a target when it comes this near to it in the plane, less than half of what
lies between two targets."""

SIDES = ("right", "middle", "left")
"""The fields and the objects in front of them, by rising y, as the robot sees them."""
PANEL_X_M = 1.40
HALF_HEIGHT_M = 0.10
FIELD_SPACING_M = 0.20

Colour = tuple[float, float, float, float]
GREY: Colour = (0.25, 0.25, 0.27, 1.0)
WHITE: Colour = (1.0, 1.0, 1.0, 1.0)
LIT: Colour = (1.0, 0.35, 0.75, 1.0)
"""Pink, which is the colour of nothing else."""

LAMPS = ("lamp_left", "lamp_middle", "lamp_right")
CHEST_TOP_Z_M = 0.93
SPACING_M = 0.19
RADIUS_M = 0.045


@dataclass(frozen=True)
class Decoy:
    """A cue that does not count, since another one follows."""

    choice: str
    """What it asks for, which is not the right choice."""
    first_tick: int
    ticks: int


@dataclass(frozen=True, kw_only=True)
class CueState(InitialState):
    """How an episode with a cue starts. `goal` is the right choice."""

    choices: tuple[str, ...]
    """What the robot can choose."""
    gap: int
    """Ticks between the cue and "go"."""
    left_on: bool = False
    """Whether the cue stays visible."""
    held_out: tuple[str, ...] = ()
    """What takes the place of `choices`, one by one, for a cue that is never drawn otherwise."""
    decoys: tuple[Decoy, ...] = ()
    cue_tick: int = 0
    """The tick at which the cue that counts begins."""

    def with_options(self, options: Mapping[str, Any]) -> CueState:
        """Return the same state with the gap, the cue and the right choice that `options` fix."""
        gap = options.get("gap", self.gap)
        if not isinstance(gap, int | np.integer) or gap < 0:
            raise UserError(f"gap {gap!r} must be a whole number of ticks, 0 or more")
        cue = options.get("cue", CUES[0])
        require_choice("cue", cue, CUES if self.held_out else CUES[:2])
        choices = self.held_out if cue == "held_out" else self.choices
        goal = options.get("right_choice", choices[self.choices.index(self.goal)])
        require_choice("right_choice", goal, choices)
        return replace(self, gap=int(gap), left_on=cue == "left_on", goal=goal, choices=choices)


def draw_gap(rng: np.random.Generator) -> int:
    return int(rng.integers(*GAPS, endpoint=True))


State = TypeVar("State", bound=CueState)


class CueTask(Task):
    """A task of the memory suite. `sample` returns a `CueState`.

    Success needs the right choice: the environment counts no tick as solved once the robot has
    chosen something else.
    """

    cue_ticks: ClassVar[int]
    """How long the cue is shown."""
    takes_decoys: ClassVar[bool] = True
    """Whether a cue can be told from one before it."""
    least_rate: ClassVar[float] = 0.5
    """The shortest that a variation of the rate may make the cue, as a factor."""

    def instruction(self, goal: str) -> str:
        """Return the instruction, which does not tell the goal."""
        return self.template

    def go_tick(self, world: KitchenWorld) -> int:
        """Return the first tick at which the robot may act."""
        start = start_of(world, CueState)
        return start.cue_tick + self.cue_ticks + start.gap

    def cue_end(self, world: KitchenWorld) -> int:
        """Return the first tick of the gap."""
        return self.go_tick(world) - start_of(world, CueState).gap

    def go(self, world: KitchenWorld) -> bool:
        return world.tick >= self.go_tick(world)

    def tick_limit(self, world: KitchenWorld) -> int:
        """Return the tick at which the episode is cut off: `max_ticks` after "go"."""
        return self.go_tick(world) + self.max_ticks

    def with_decoys(self, start: CueState, level: int, rng: np.random.Generator) -> CueState:
        """Return the same state with decoys before the cue. `rng` is left as it is.

        Their number and times do not depend on the right choice.
        """
        if not level or not self.takes_decoys:
            return start
        rng = np.random.default_rng((int(deepcopy(rng).integers(2**32)), 1))
        right, tick, decoys = start.choices.index(start.goal), 0, []
        fewest, most = (0, 1) if level == 1 else (1, level)
        for _ in range(rng.integers(fewest, most, endpoint=True)):
            ticks = rng.integers(self.cue_ticks if level == 1 else 1, self.cue_ticks, endpoint=True)
            other = start.choices[(right + rng.integers(1, 3)) % 3]
            decoys.append(Decoy(other, tick, int(ticks)))
            tick += int(ticks + rng.integers(1, MOST_BLANK, endpoint=True))
        return replace(start, decoys=tuple(decoys), cue_tick=tick)

    def shown(self, world: KitchenWorld) -> tuple[str | None, int]:
        """Return the choice whose cue is shown now, or None, and for how many ticks it has been shown."""
        start = start_of(world, CueState)
        for decoy in start.decoys:
            if 0 <= world.tick - decoy.first_tick < decoy.ticks:
                return decoy.choice, world.tick - decoy.first_tick
        since = world.tick - start.cue_tick
        visible = since >= 0 and (start.left_on or since < self.cue_ticks)
        return (start.goal if visible else None), since

    @abstractmethod
    def choice(self, world: KitchenWorld) -> str | None:
        """Return what the robot is choosing now, or None. Asked after "go"; the first choice counts."""


def start_of(world: KitchenWorld, kind: type[State]) -> State:
    """Return how the present episode began, as a state of that kind."""
    assert isinstance(world.start, kind)
    return world.start


def add_panel(scene: mujoco.MjSpec) -> None:
    """Add a panel with three fields behind the objects, which can be seen and not touched."""
    panel, decor = scene.worldbody.add_body(name="panel"), scene.find_default("decor")
    box, height_m = mujoco.mjtGeom.mjGEOM_BOX, HALF_HEIGHT_M
    panel.add_geom(
        decor, name="panel_frame", type=box, pos=(0.02, 0, 0), size=(0.01, 0.34, height_m)
    )
    for index, side in enumerate(SIDES):
        place, size = (0, FIELD_SPACING_M * (index - 1), 0), (0.01, 0.085, height_m - 0.025)
        panel.add_geom(decor, name=f"panel_{side}", type=box, pos=place, size=size)


def place_panel(world: KitchenWorld, y_m: float) -> None:
    """Put the panel behind objects whose middle lies at y_m in the world."""
    world.model.body("panel").pos[:] = (PANEL_X_M, y_m, COUNTER_TOP_Z_M + HALF_HEIGHT_M)
    mujoco.mj_forward(world.model, world.data)


def colour_panel(world: KitchenWorld, *, go: bool, shown: Mapping[str, Colour]) -> None:
    """Show some fields in a colour. All the rest is grey before "go", and white from then on."""
    rest = WHITE if go else GREY
    world.model.geom("panel_frame").rgba[:] = rest
    for side in SIDES:
        world.model.geom(f"panel_{side}").rgba[:] = shown.get(side, rest)


def add_lamps(scene: mujoco.MjSpec) -> None:
    """Add three lamps in a row on the chest of drawers, which can be seen and not touched."""
    for index, name in enumerate(LAMPS):
        y_m = CHEST_POSITION_M[1] + SPACING_M * (1 - index)
        scene.worldbody.add_geom(
            scene.find_default("decor"),
            name=name,
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(RADIUS_M, 0.04, 0),
            pos=(1.13, y_m, CHEST_TOP_Z_M + 0.04),
        )


def colour_lamps(world: KitchenWorld, *, go: bool, lit: Collection[str]) -> None:
    """Light some of the lamps. The others are grey before "go", and white from then on."""
    for name in LAMPS:
        world.model.geom(name).rgba[:] = LIT if name in lit else WHITE if go else GREY


def approached(world: KitchenWorld, targets_m: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the target that the gripper has come near to in the plane, or None.

    targets_m: name -> (2,) or (3,), position in the world.
    """
    gripper_m = world.data.site(fetch.PREFIX + fetch.GRIP_SITE).xpos[:2]
    away_m = {name: np.linalg.norm(at[:2] - gripper_m) for name, at in targets_m.items()}
    nearest = min(away_m, key=away_m.__getitem__)
    return nearest if away_m[nearest] < NEAR_M else None
