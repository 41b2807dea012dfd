"""What tasks share that ask for a colour or a shape: a row of bodies that is not there before "go".

The cue is shown while all bodies are out of sight, so that no place can be bound to it: what is remembered
must be compared with what is seen at "go".
"""

from __future__ import annotations

import colorsys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from ttm.sim.kitchen.scene import COUNTER_FRONT_X_M
from ttm.sim.kitchen.world import KitchenWorld
from ttm.sim.tasks.memory import cue
from ttm.sim.tasks.motions import base_facing, gripper_start, lay_objects, park_objects

HUES = {
    "red": 0, "orange": 28, "yellow": 55, "green": 120,
    "cyan": 180, "blue": 225, "purple": 275, "pink": 320,
}  # fmt: skip
"""The colours that episodes draw, and their hues in degrees."""
HELD_OUT_HUES = {"lime": 86, "mint": 152, "indigo": 250, "rose": 340}
"""Those that they draw for `cue="held_out"` alone."""


def rgba(colour: str) -> cue.Colour:
    """Return the colour of that name."""
    hue_deg = (HUES | HELD_OUT_HUES)[colour]
    return (*colorsys.hsv_to_rgb(hue_deg / 360, 0.9, 0.9), 1.0)


def draw_names(rng: np.random.Generator, names: Collection[str], count: int = 3) -> tuple[str, ...]:
    """Draw different ones of the names."""
    return tuple(str(name) for name in rng.permutation(list(names))[:count])


@dataclass(frozen=True, kw_only=True)
class RowState(cue.CueState):
    """Three bodies in a row before the panel, each of which is a choice."""

    bodies: dict[str, str]
    """Choice -> the body that it means."""
    centre_y_m: float
    """Where the middle of the row lies."""


@dataclass(frozen=True, kw_only=True)
class ContentState(RowState):
    """A row that is out of sight before "go"."""

    places_m: tuple[tuple[float, float, float], ...]
    """Where the body of each choice stands from "go" on."""


def draw_row(
    rng: np.random.Generator,
    x_m: float | None = None,
    names: Collection[str] = HUES,
    held_out_names: Collection[str] = HELD_OUT_HUES,
) -> dict[str, Any]:
    """Draw three objects, a name of a choice for each, and where they stand, as fields of a `ContentState`.

    x_m: the place of all of them, so that none bars the way to another; None: each has its own.
    """
    centre_y_m = rng.uniform(0.0, 0.8)
    objects, placed = lay_objects(rng, centre_y_m)
    choices, held_out = draw_names(rng, names), draw_names(rng, held_out_names)
    facing_x_m = COUNTER_FRONT_X_M + 0.13 if x_m is None else x_m
    return {
        "goal": choices[rng.integers(3)],
        "objects_m": park_objects(),
        "base_pose": base_facing(rng, facing_x_m, centre_y_m),
        "gripper_m": gripper_start(rng),
        "choices": choices,
        "held_out": held_out,
        "gap": cue.draw_gap(rng),
        "bodies": dict(zip(choices + held_out, 2 * objects, strict=True)),
        "centre_y_m": centre_y_m,
        "places_m": tuple(
            placed[name] if x_m is None else (x_m, *placed[name][1:]) for name in objects
        ),
    }


def add_coloured_row(scene: mujoco.MjSpec) -> None:
    """Add the panel. Objects of this scene change their colours, so that other tasks have their own."""
    cue.add_panel(scene)


def paint(world: KitchenWorld, body: str, colour: cue.Colour) -> None:
    """Give all parts of the body a colour."""
    first = world.model.body(body).geomadr[0]
    world.model.geom_rgba[first : first + world.model.body(body).geomnum[0]] = colour


def show_row(world: KitchenWorld, *, go_tick: int) -> None:
    """Bring the bodies when the robot may act."""
    start = cue.start_of(world, ContentState)
    if world.tick == go_tick:
        for choice, place_m in zip(start.choices, start.places_m, strict=True):
            joint = world.data.joint(start.bodies[choice])
            joint.qpos[:], joint.qvel[:] = (*place_m, 1, 0, 0, 0), 0.0
        mujoco.mj_forward(world.model, world.data)


def paint_row(world: KitchenWorld) -> None:
    """Give each object the colour that its choice is named after."""
    start = cue.start_of(world, ContentState)
    for choice in start.choices:
        paint(world, start.bodies[choice], rgba(choice))
