"""The ticks of a bag: the numbers of the messages that belong to each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ttm.policy.errors import UserError
from ttm_policy.bags.bag_file import Stamps
from ttm_policy.recording.matching import Tick, TickMatcher


def find_ticks(
    stamps: Mapping[str, Stamps],
    observed: Collection[str],
    commands: Collection[str],
    moving: Collection[str],
    rate_hz: float,
    path: Path,
    *,
    measured: bool = False,
    first_tick_ns: int | None = None,
) -> list[Tick[int]]:
    """Match messages to ticks; return the numbers of the messages of each tick.

    stamps: topic -> stamps in ns, in the order of recording. moving: the commands that move the
    robot by velocity. measured: whether actions are measured, and need no command; the last tick then only
    measures the one before. first_tick_ns: when the first tick begins; None for when every
    topic was seen. Raises `UserError` if a topic has no message, or there is no whole tick.
    """
    matcher = TickMatcher[int](observed, commands, moving, rate_hz, measured=measured)
    for topic, values in stamps.items():
        for number, stamp_ns in enumerate(values.tolist()):
            matcher.add(topic, stamp_ns, number)
    for topic in matcher.unseen:
        raise UserError(f"{path}: topic '{topic}' has no message; record it with the others")
    if first_tick_ns is not None:
        matcher.begin_at(first_tick_ns)
    if not measured and not any(len(stamps[topic]) for topic in commands):
        raise UserError(f"{path} has no command of the contract; nothing can be learned from it")
    try:
        ticks = list(matcher.finish())
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not ticks:
        what = (
            "there is no whole observation after" if measured else "the last command is older than"
        )
        raise UserError(f"{path}: {what} the first whole observation")
    return ticks


def users_of(ticks: Sequence[Tick[int]]) -> dict[tuple[str, int], list[int]]:
    """Return (topic, number of the message) -> the ticks that it belongs to."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, tick in enumerate(ticks):
        for topic, number in {*tick.observation.items(), *tick.command.items()}:
            found[topic, number].append(place)
    return found
