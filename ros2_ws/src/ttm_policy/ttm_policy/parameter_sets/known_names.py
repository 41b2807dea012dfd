"""Finds typing errors in names that ROS itself ignores: of launch arguments and of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ttm.policy.errors import UserError


def require_known(
    kind: str, given: Iterable[str], known: Iterable[str], cutoff: float = 0.75
) -> list[str]:
    """Return the names in `given` that are not in `known`.

    kind: what they are, for the message. cutoff: how alike two names must be, of 1. Raises `UserError` if
    one of them looks like a known name with a typing error, since the robot would otherwise move with the
    default of what was meant.
    """
    names = list(known)
    strangers = [name for name in given if name not in names]
    for name in strangers:
        if close := get_close_matches(name, names, n=1, cutoff=cutoff):
            raise UserError(f"there is no {kind} {name}; did you mean {close[0]}?")
    return strangers
