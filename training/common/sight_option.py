"""The two options of a variant that are no fields of its core: the size of a sight memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttm.policy.errors import UserError

TOKENS, CELLS = "sight_tokens", "sight_cells"
"""The names of the fields."""


@dataclass(frozen=True)
class SightSize:
    """The size of a sight memory."""

    tokens: int = 0
    """J, its selectors; 0 for no sight memory."""
    cells: int | None = None
    """Cells along each side of a frame; None for the checkpoint's, or else the default."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options that give it, each FIELD=VALUE."""
        cells = () if self.cells is None else (f"{CELLS}={self.cells}",)
        return (f"{TOKENS}={self.tokens}", *cells) if self.tokens else ()


NO_SIGHT = SightSize()


def split_sight(options: Sequence[str]) -> tuple[tuple[str, ...], SightSize]:
    """Return the options of the core, and the size of the sight memory.

    options: each FIELD=VALUE, of which the last one of a name counts. Without `TOKENS` there is no
    sight memory. Raises `UserError` if a value is no whole number, or if there are 0 cells.
    """
    tokens, cells = _last(options, TOKENS), _last(options, CELLS)
    if cells == 0:
        raise UserError(f"{CELLS}=0: a frame has at least one cell; give a number such as 12 or 16")
    own = tuple(each for each in options if each.partition("=")[0] not in (TOKENS, CELLS))
    return own, SightSize(tokens or 0, cells)


def _last(options: Sequence[str], name: str) -> int | None:
    given = [option for option in options if option.startswith(f"{name}=")]
    if not given:
        return None
    value = given[-1].partition("=")[2]
    if not value.isdecimal():
        raise UserError(f"{given[-1]} is no number; give a whole number, such as {name}=6")
    return int(value)
