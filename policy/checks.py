"""Checks of numbers that users give: sizes in configurations, options of commands.

Every check raises a `UserError` that names the number, its value and what to give instead. None stands for a
value that was left out and passes every check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ttm.policy.errors import UserError


def require_at_least(least: float, values: Mapping[str, Any]) -> None:
    """values: name -> number; each must be `least` or more. NaN is not."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise UserError(f"{name} is {value}; give {least:g} or more")


def require_above_0(values: Mapping[str, Any]) -> None:
    """values: name -> number; each must be greater than 0. NaN is not."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise UserError(f"{name} is {value}; give a number above 0")


def require_portion(values: Mapping[str, Any]) -> None:
    """values: name -> number; each must lie in [0, 1]."""
    for name, value in values.items():
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{name} is {value}; give a portion from 0 to 1")


def require_some(values: Mapping[str, Any]) -> None:
    """values: name -> sequence; none may be empty."""
    for name, value in values.items():
        if value is not None and not value:
            raise UserError(f"{name} is empty; give one value or more")


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """`value` must be one of `choices`."""
    known = tuple(choices)
    if value not in known:
        raise UserError(f"{name} is '{value}'; give one of {', '.join(known)}")


def options(command: object, *fields: str) -> dict[str, Any]:
    """The values of a command's fields under the names that the command line gives them, such as `--batch-size`."""
    return {f"--{field.replace('_', '-')}": getattr(command, field) for field in fields}
