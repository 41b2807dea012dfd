"""The tables that `ttm bench sim` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from rich.table import Table

from ttm.training.bench.report import rows_table
from ttm.training.bench.sim.measure import SHIPPED, SimRow
from ttm.training.bench.sim.parts import PARTS

BAR_TICKS_PER_S = 160
"""The project's bar for the whole environment on one core."""
HEADINGS = {"inverse kinematics": "IK"}
"""Part -> a shorter name of its column."""
NAMES: Mapping[str, Callable[[SimRow], str]] = MappingProxyType(
    {
        "ticks of": lambda row: row.task if row.situation == "acting" else f"{row.task}, gap",
        "frames": lambda row: row.frames,
    }
)
"""The first columns of both tables."""
NOTES = f"""\
  frames    as shipped: only what is in view is drawn, and nothing twice that did not change.
            everything: the whole scene is drawn at every tick; "speed" is relative to it.
  gap       those ticks of a memory task in which the robot is held still and the cue is hidden.
  bar       {BAR_TICKS_PER_S} ticks a second.
  changed   frames that differ in some bit from those of the whole scene.
  physics   50 substeps and the commands to the motors in each. IK: inverse kinematics (mink).
  task      cue, predicate and choice. rest: measuring the robot, and Gymnasium's wrappers.
"""


def speed_table(rows: Sequence[SimRow]) -> Table:
    """Return the table of ticks a second."""
    columns: dict[str, Callable[[SimRow], str]] = {
        **NAMES,
        "ticks/s": lambda row: f"{row.ticks_per_s:,.0f}",
        "bar": lambda row: f">= {BAR_TICKS_PER_S}" if row.frames == SHIPPED else "",
        "speed": lambda row: f"{row.speed:.2f}",
        "changed": lambda row: str(row.different_frames) if row.frames == SHIPPED else "",
    }
    return rows_table("Ticks of the kitchen on one core; medians over the episodes", columns, rows)


def part_table(rows: Sequence[SimRow]) -> Table:
    """Return the table of the milliseconds of each part of a tick."""
    columns: dict[str, Callable[[SimRow], str]] = {
        **NAMES,
        "tick": lambda row: f"{row.tick_ms:.2f}",
    }
    for part in PARTS:
        columns[HEADINGS.get(part, part)] = partial(_part, part)
    return rows_table("The time of a tick and of its parts, ms", columns, rows)


def _part(part: str, row: SimRow) -> str:
    return f"{row.parts_ms[part]:.2f}"
