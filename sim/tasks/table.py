"""The table of the kitchen's tasks: one line for each task, without importing MuJoCo.

To add a task, write its file beside this one (see `ttm.sim.tasks.task.Task`) and add its line. Its module
is imported when the task is first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ttm.policy.errors import require_choice


@dataclass(frozen=True)
class TaskEntry:
    """One line of the table."""

    where: str
    """The task's class as `module:class`; a module of this folder begins with a dot."""
    description: str
    """What the task asks for, for help texts."""
    suite: str = "skills"
    """The suite that the task belongs to: "skills", which need no memory, "groups", or "memory"."""


TASKS: dict[str, TaskEntry] = {
    "pick": TaskEntry(".pick:Pick", "pick up a named object"),
    "open_drawer": TaskEntry(".open_drawer:OpenDrawer", "open a named drawer"),
    "pick_object": TaskEntry(".pick_object:PickObject", "pick up a household object", "groups"),
    "drawer": TaskEntry(".drawer:Drawer", "open or close a named drawer", "groups"),
    "knock_over": TaskEntry(".knock_over:KnockOver", "knock a household object over", "groups"),
    "place_upright": TaskEntry(".place_upright:PlaceUpright", "place a lying object upright", "groups"),
    "move_near": TaskEntry(".move_near:MoveNear", "move a household object near another", "groups"),
    "side_shown": TaskEntry(".memory.side_shown:SideShown", "pick on the side that was shown", "memory"),
    "colour_shown": TaskEntry(".memory.colour_shown:ColourShown", "pick the colour that was shown", "memory"),
    "shape_shown": TaskEntry(".memory.shape_shown:ShapeShown", "pick the shape that was shown", "memory"),
    "count": TaskEntry(".memory.count:Count", "open the drawer that blinks counted", "memory"),
    "take_back": TaskEntry(".memory.take_back:TakeBack", "put an object where it stood", "memory"),
    "sequence": TaskEntry(".memory.sequence:Sequence", "touch three in the order shown", "memory"),
    "shell": TaskEntry(".memory.shell:Shell", "lift the cup that hides the ball", "memory"),
    "search": TaskEntry(".memory.search:Search", "open the drawer not searched yet", "memory"),
}  # fmt: skip


def _names(suite: str) -> tuple[str, ...]:
    return tuple(name for name, task in TASKS.items() if task.suite == suite)


TASK_NAMES = tuple(TASKS)
SKILL_NAMES, GROUP_NAMES, MEMORY_NAMES = map(_names, ("skills", "groups", "memory"))


def task_groups() -> dict[str, tuple[str, ...]]:
    """Return the words of commands that stand for several tasks, and the names of these."""
    return {"all": _names("skills"), "groups": _names("groups"), "memory": _names("memory")}


# For help texts.
TASK_METAVAR = "{" + ",".join([*TASK_NAMES, *task_groups()]) + "}"
TASK_DESCRIPTIONS = ", ".join(f"{name} ({task.description})" for name, task in TASKS.items())
GROUP_DESCRIPTIONS = "; ".join(f"{word}: {', '.join(each)}" for word, each in task_groups().items())


def load_task(name: str) -> Any:
    """Return a new instance of the named task, a `ttm.sim.tasks.task.Task`.

    Raises `UserError` if the table does not hold the name.
    """
    require_choice("task", name, TASKS)
    module, _, class_name = TASKS[name].where.partition(":")
    return getattr(import_module(module, __package__), class_name)()


def instructions_of(name: str) -> tuple[str, ...]:
    """Return all instructions that the named task may give."""
    return load_task(name).instructions
