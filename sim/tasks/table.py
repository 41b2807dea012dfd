"""The table of the kitchen's tasks: one line for each task, without importing MuJoCo.

Command lines, help texts, tests and the ROS side take the names of the tasks from here:

- `TASK_NAMES` is the tuple of all names, and `TASK_DESCRIPTIONS` says in a few words what each of
  the tasks asks for.
- `TaskName` is the type of an option that takes one of these names: a `Literal` of the names at
  run time, from which tyro makes the choices, and `str` for type checkers.
- `instructions_of(name)` returns the instructions that a task may give.
- `task_of_instruction(text)` returns the name of the task that gives an instruction.
- `load_task(name)` imports the task's module and returns the task. The two functions above do so
  too, which imports MuJoCo. The names alone cost nothing.

To add a task, write its file beside this one (see `ttm.sim.tasks.task.Task`) and add its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ttm.policy.errors import UserError


@dataclass(frozen=True)
class TaskEntry:
    """One line of the table."""

    where: str
    """The task's class as `module:class`. The module is imported when the task is first used."""
    description: str
    """What the task asks for, for help texts."""


TASKS: dict[str, TaskEntry] = {
    "pick": TaskEntry("ttm.sim.tasks.pick:Pick", "pick up a named object"),
    "open_drawer": TaskEntry("ttm.sim.tasks.open_drawer:OpenDrawer", "open a named drawer"),
}

TASK_NAMES = tuple(TASKS)
TASK_DESCRIPTIONS = ", ".join(f"{name} ({task.description})" for name, task in TASKS.items())
"""For help texts."""
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[TASK_NAMES]


def load_task(name: str) -> Any:
    """Return a new instance of the named task, a `ttm.sim.tasks.task.Task`.

    Raises `UserError` if the table does not hold the name.
    """
    if name not in TASKS:
        raise UserError(f"task '{name}' does not exist; choose one of: {', '.join(TASKS)}")
    module, _, class_name = TASKS[name].where.partition(":")
    return getattr(import_module(module), class_name)()


def instructions_of(name: str) -> tuple[str, ...]:
    """Return all instructions that the named task may give."""
    instructions: tuple[str, ...] = load_task(name).instructions
    return instructions


def task_of_instruction(text: str, among: Sequence[str] | None = None) -> str:
    """Return the name of the task that gives the instruction `text`.

    Parameters
    ----------
    text : str
        The instruction.
    among : sequence of str, optional
        The names of the tasks to choose from. Default: all tasks.

    Raises
    ------
    UserError
        If none of these tasks gives the instruction. The message lists the known instructions.
    """
    known = {name: instructions_of(name) for name in among or TASKS}
    for name, instructions in known.items():
        if text in instructions:
            return name
    texts = ", ".join(f"'{each}'" for instructions in known.values() for each in instructions)
    raise UserError(f"the simulated kitchen has no task '{text}'; it knows: {texts}")
