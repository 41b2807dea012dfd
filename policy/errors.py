"""Errors that users can fix, and checks of values that users give.

The command line prints the message of a `UserError` and exits with code 2. A check takes name -> value,
and lets None pass, which stands for a value that was left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

MOST_PRINTED = 4000
"""Characters of one message on a terminal."""
MOST_CHARACTERS = 1000
"""The longest instruction."""


class UserError(ValueError):
    """Invalid input. The message is one line that names the value, the rule and the fix."""


class ObservationError(UserError):
    """An observation that must not enter the memory. The tick had no effect."""


class MissingObservation(ObservationError):
    """A camera or a proprioception vector that the policy needs is missing."""


class MalformedObservation(ObservationError):
    """A value is not finite, or differs in shape or type from those of training."""


class StaleObservation(ObservationError):
    """The observation is older than the runner accepts, or its stamp is ahead of the clock."""


class PolicyUnreachable(ObservationError):
    """A policy on another machine does not answer, so that the robot has to stand still."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, to be quoted in the one line of a `UserError`."""
    return str(error).strip().split("\n")[0]


def printable(text: object, most: int = MOST_PRINTED) -> str:
    """Return a text in one line of at most `most` characters, which no terminal takes for a command.

    Characters that are not printed, such as ESC, are written as Python does.
    """
    line = " ".join(str(text)[: 8 * most].encode("utf-8", "backslashreplace").decode().split())
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
    return shown if len(shown) <= most and len(str(text)) <= 8 * most else f"{shown[: most - 1]}…"


def _require(values: Mapping[str, Any], holds: Callable[[Any], bool], wanted: str) -> None:
    for name, value in values.items():
        if value is not None and not holds(value):
            raise UserError(f"{name} is {value}; give {wanted}")


def require_at_least(least: float, values: Mapping[str, Any]) -> None:
    """Check that each number of `values` is `least` or more. NaN is not."""
    _require(values, lambda value: value >= least, f"{least:g} or more")


def require_at_most(most: float, values: Mapping[str, Any]) -> None:
    """Check that each number of `values` is `most` or less. NaN is not."""
    _require(values, lambda value: value <= most, f"{most:g} or less")


def require_above_0(values: Mapping[str, Any]) -> None:
    """Check that each number of `values` is greater than 0. NaN is not."""
    _require(values, lambda value: value > 0, "a number above 0")


def require_portion(values: Mapping[str, Any]) -> None:
    """Check that each number of `values` lies in [0, 1]."""
    _require(values, lambda value: 0 <= value <= 1, "a portion from 0 to 1")


def require_some(values: Mapping[str, Any]) -> None:
    """Check that no sequence of `values` is empty."""
    for name, value in values.items():
        if value is not None and not value:
            raise UserError(f"{name} is empty; give one value or more")


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Check that `value` is one of `choices`."""
    known = tuple(choices)
    if value not in known:
        raise UserError(f"{name} is '{value}'; give one of {', '.join(known)}")


def require_valid_fields(config: Any, smallest: Mapping[str, int]) -> None:
    """Check the choices and the sizes of a dataclass by the types of its fields.

    A `Literal` field must have one of the values that its type lists. An `int` field must be at
    least `smallest[name]`, or at least 1 if `smallest` does not name it.
    """
    types = get_type_hints(type(config))
    for name in (field.name for field in fields(config)):
        value = getattr(config, name)
        if get_origin(types[name]) is Literal:
            require_choice(name, value, get_args(types[name]))
        elif types[name] is int:
            require_at_least(smallest.get(name, 1), {name: value})


def require_line(text: str, name: str) -> str:
    """Return an instruction as one line: white space that cannot be printed becomes one space."""
    if len(text) > MOST_CHARACTERS:
        most = f"at most {MOST_CHARACTERS} are taken"
        raise UserError(f"{name} has {len(text)} characters, and {most}")
    return text if text.isprintable() else " ".join(text.split())


def require_instruction(text: str, name: str = "the instruction") -> str:
    """Return an instruction as `require_line`, and refuse characters that cannot be printed, as ESC."""
    line = require_line(text, name).strip()
    if not line.isprintable():
        line = printable(line, 100)
        raise UserError(f"{name} is '{line}'; leave out the characters that cannot be printed")
    return line


def require_writable(path: Path, option: str = "--out", *, folder: bool = True) -> None:
    """Raise `UserError` if nothing can be written to `path`, before anything is computed for it.

    option: what gave the path. folder: whether it becomes a folder, and not a file.
    """
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() and (folder or there != path):
        why = f"{there} is no folder"
    elif not os.access(there, os.W_OK):
        why = f"{there} is not writable"
    else:
        return
    raise UserError(f"cannot write to {path}: {why}; give another {option}")


def options(command: object, *fields: str) -> dict[str, Any]:
    """Return the values of `fields` under their command-line names, such as `--batch-size`."""
    return {f"--{field.replace('_', '-')}": getattr(command, field) for field in fields}
