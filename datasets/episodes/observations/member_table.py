"""The members of `obs` in words, as every command that reads episodes prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ttm.datasets.observations.members import Member

TITLE = "Members of obs"


def member_rows(members: Sequence[Member]) -> list[tuple[str, str]]:
    """Return (name, what is done with it), those that are used first."""
    ordered = sorted(members, key=lambda member: not member.is_used)
    return [(member.name, member.text) for member in ordered]


def member_lines(members: Sequence[Member]) -> Iterable[str]:
    """Return one line for each member that is not used, and one for all that are used."""
    used = [member for member in members if member.is_used]
    if used:
        yield "obs used: " + ", ".join(f"{member.name} ({member.text})" for member in used)
    for member in members:
        if not member.is_used:
            yield f"obs/{member.name} {member.text}"
