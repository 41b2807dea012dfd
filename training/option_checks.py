"""What the commands ask of their options; each gives a `UserError` that names the option and its value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ttm.policy.errors import UserError


def require_1_or_more(command: object, *names: str) -> None:
    """names: fields of `command` that are numbers; None is an option left out."""
    for option, value in _given(command, names):
        if value < 1:
            raise UserError(f"{option} is {value}; give 1 or more")


def require_above_0(command: object, *names: str) -> None:
    """names: fields of `command` that are numbers; None is an option left out."""
    for option, value in _given(command, names):
        if not value > 0:  # nor nan
            raise UserError(f"{option} is {value}; give a number above 0")


def require_some(command: object, *names: str) -> None:
    """names: fields of `command` that are tuples."""
    for option, value in _given(command, names):
        if not value:
            raise UserError(f"{option} is empty; give one value or more")


def _given(command: object, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """As the command line calls it, and its value."""
    for name in names:
        value = getattr(command, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}", value
