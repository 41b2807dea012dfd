"""Which messages of a bag belong to which tick.

The first tick is when every observation has been seen once; the others follow at the control rate,
until the last command. A tick's observation is the newest message of each topic that was made until
then. Its action are the newest commands that were made from then until the next tick. If there is
none, a robot that moves by velocity stands still, and others hold their last command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ttm.policy.errors import UserError
from ttm_policy.bags.bag_file import Stamps

NOTHING = -1

MOST_TICKS_A_MESSAGE = 100
"""More ticks for each message of the fullest topic mean that stamps are of different clocks."""


@dataclass(frozen=True)
class Ticks:
    """The messages of T ticks: topic -> the number of its message in each tick, or `NOTHING`."""

    observations: Mapping[str, Stamps]
    commands: Mapping[str, Stamps]
    captured_ns: Stamps
    """(T,) when the newest observation of each tick was made."""

    def wanted(self) -> dict[str, set[int]]:
        """Return topic -> the numbers of all messages that any tick needs."""
        found: dict[str, set[int]] = {}
        for numbers in (self.observations, self.commands):
            for topic, values in numbers.items():
                found.setdefault(topic, set()).update(values[values != NOTHING].tolist())
        return found


def find_ticks(
    stamps: Mapping[str, Stamps],
    observations: Collection[str],
    commands: Collection[str],
    moving: Collection[str],
    rate_hz: float,
    path: Path,
) -> Ticks:
    """Match messages to ticks.

    stamps: topic -> stamps in ns, in the order of recording. moving: the commands that move the
    robot by velocity. Raises `UserError` if a topic has no message, or there is no whole tick.
    """
    for topic in observations:
        if not len(stamps[topic]):
            raise UserError(f"{path}: topic '{topic}' has no message; record it with the others")
    sent = [stamps[topic].max() for topic in commands if len(stamps[topic])]
    if not sent:
        raise UserError(f"{path} has no command of the contract; nothing can be learned from it")
    start = max(int(stamps[topic].min()) for topic in observations)
    period = 1e9 / rate_hz
    count = int((max(sent) - start) // period) + 1
    if count < 1:
        raise UserError(f"{path}: the last command is older than the first whole observation")
    if count > MOST_TICKS_A_MESSAGE * max(
        len(stamps[topic]) for topic in (*observations, *commands)
    ):
        raise UserError(
            f"{path}: the last command was made {count * period / 1e9:.0f} s after the first whole "
            "observation, with hardly a message in between; their stamps are of different clocks"
        )
    times = start + np.rint(np.arange(count + 1) * period).astype(np.int64)
    seen = {topic: _newest(stamps[topic], times[:-1]) for topic in observations}
    done = {topic: _newest(stamps[topic], times[1:] - 1) for topic in commands}
    for topic in moving:
        numbers = done[topic]
        old = stamps[topic][numbers] < times[:-1] if len(stamps[topic]) else numbers == NOTHING
        done[topic] = np.where(old, NOTHING, numbers)
    captured = np.max([stamps[topic][numbers] for topic, numbers in seen.items()], axis=0)
    return Ticks(seen, done, captured)


def _newest(stamps: Stamps, times: Stamps) -> Stamps:
    """Return the number of the newest message until each time, or `NOTHING`."""
    order = np.argsort(stamps, kind="stable")
    places = np.searchsorted(stamps[order], times, side="right") - 1
    numbers = order[np.maximum(places, 0)] if len(order) else np.zeros(len(times), np.int64)
    return np.where(places < 0, NOTHING, numbers)
