"""The one option of a variant that is no field of its core: the selectors of a sight memory."""

from __future__ import annotations

from collections.abc import Sequence

from ttm.policy.errors import UserError

SIGHT = "sight_tokens"
"""The name of the field."""


def split_sight(options: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the options of the core, and the number of selectors of the sight memory.

    options: each FIELD=VALUE. The last one that names `SIGHT` counts; without one there are 0.
    Raises `UserError` if its value is no whole number.
    """
    given = [option for option in options if option.startswith(f"{SIGHT}=")]
    value = given[-1].partition("=")[2] if given else "0"
    if not value.isdecimal():
        raise UserError(f"{given[-1]} is no number of tokens; give a whole number, such as 6 or 0")
    return tuple(option for option in options if option not in given), int(value)
