"""Which messages belong to which tick, for recorded bags and for recording live.

The first tick is when every observation has been seen once; the others follow at the control rate,
until the last command. A tick's observation is the newest message of each topic that was made until
then. Its action are the newest commands that were made from then until the next tick. If there is
none, a robot that moves by velocity stands still, and others hold their last command.

Where actions are measured, ticks need no command: the last one is that before the newest observation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, TypeVar

from ttm.policy.errors import UserError

Message = TypeVar("Message")

MOST_TICKS_A_MESSAGE = 100
"""More ticks for each message of the fullest topic mean that stamps are of different clocks."""


@dataclass(frozen=True)
class Tick(Generic[Message]):
    """The messages of one tick, by topic."""

    observation: Mapping[str, Message]
    """The newest message of each observed topic."""
    stamps_ns: Mapping[str, int]
    """When each of them was made."""
    command: Mapping[str, Message]
    """The newest command of each topic that had one."""

    @property
    def captured_ns(self) -> int:
        """When the newest message of the observation was made."""
        return max(self.stamps_ns.values())

    def earlier(self, by_ns: int) -> Tick[Message]:
        """Return the tick with observations that were made so much earlier."""
        stamps_ns = {topic: stamp_ns - by_ns for topic, stamp_ns in self.stamps_ns.items()}
        return replace(self, stamps_ns=stamps_ns)


class TickMatcher(Generic[Message]):
    """Takes messages in the order in which they were received, and gives the ticks that they make.

    Parameters
    ----------
    observed
        The topics of the observation.
    commands
        The topics of the commands.
    moving
        Those commands that move the robot by velocity.
    rate_hz
        The control rate.
    start_ns
        Observations that were made before are not used. Commands are, since they are still in force.
    measured
        Whether actions are measured from one tick to the next.
    """

    def __init__(
        self,
        observed: Collection[str],
        commands: Collection[str],
        moving: Collection[str],
        rate_hz: float,
        start_ns: int | None = None,
        *,
        measured: bool = False,
    ) -> None:
        self._observed = {topic: Track[Message]() for topic in observed}
        self._commands = {topic: Track[Message]() for topic in commands}
        self._moving = frozenset(moving)
        self._period_ns = 1e9 / rate_hz
        self._earliest_ns, self._measured = start_ns, measured
        self._first_ns: int | None = None
        self._given = 0
        self._last_command_ns: int | None = None

    def add(self, topic: str, stamp_ns: int, message: Message) -> bool:
        """Take a message. Return False if it comes too late, for a tick that was given already."""
        in_time = True
        if topic in self._commands:
            self._commands[topic].add(stamp_ns, message)
            self._last_command_ns = max(stamp_ns, self._last_command_ns or stamp_ns)
            in_time = not self._given or stamp_ns >= self.begin_ns(self._given)
        if topic in self._observed and stamp_ns >= (self._earliest_ns or stamp_ns):
            self._observed[topic].add(stamp_ns, message)
            in_time &= not self._given or stamp_ns > self.begin_ns(self._given - 1)
        return in_time

    @property
    def unseen(self) -> list[str]:
        """The observed topics that have no message yet."""
        return [topic for topic, track in self._observed.items() if not track.total]

    @property
    def start_ns(self) -> int | None:
        """When the first tick is, as far as is known; None while a topic has no message."""
        if self._first_ns is not None or self.unseen:
            return self._first_ns
        return max(track.first_ns for track in self._observed.values())

    @property
    def num_ticks(self) -> int:
        """The number of ticks until the last command that is known now, or that can be measured."""
        if self.start_ns is None or self._last_ns is None:
            return 0
        whole = int((self._last_ns - self.start_ns) // self._period_ns) + 1
        return max(whole - self._measured, 0)

    @property
    def _last_ns(self) -> int | None:
        if not self._measured:
            return self._last_command_ns
        return None if self.unseen else min(t.newest_ns for t in self._observed.values())

    def begin_at(self, first_ns: int) -> None:
        """Let the first tick begin then, if every topic was seen until then."""
        if self.start_ns is not None:
            self._first_ns = max(first_ns, self.start_ns)

    def ticks(self, until_ns: int) -> Iterator[Tick[Message]]:
        """Yield the ticks that end until then, also those after the last command.

        What is added later for one of them comes too late.
        """
        while self.start_ns is not None and self.begin_ns(self._given + 1) <= until_ns:
            yield self._next(until_ns)

    def finish(self) -> Iterator[Tick[Message]]:
        """Yield the ticks that are left, until the last command, or the one that measures the last tick."""
        while self.num_ticks and self._given < self.num_ticks + self._measured:
            assert self._last_ns is not None
            yield self._next(self._last_ns)

    def _next(self, until_ns: int) -> Tick[Message]:
        self._first_ns = self.start_ns
        self._refuse_two_clocks(until_ns)
        tick = self._tick()
        self._given += 1
        return tick

    def begin_ns(self, tick: int) -> int:
        """Return when a tick begins, in ns. Every topic must have a message."""
        assert self.start_ns is not None
        return self.start_ns + round(tick * self._period_ns)

    def _tick(self) -> Tick[Message]:
        begin_ns, end_ns = self.begin_ns(self._given), self.begin_ns(self._given + 1)
        seen = {topic: track.newest(begin_ns) for topic, track in self._observed.items()}
        done = {topic: track.newest(end_ns - 1) for topic, track in self._commands.items()}
        return Tick(
            {topic: found[1] for topic, found in seen.items() if found},
            {topic: found[0] for topic, found in seen.items() if found},
            {
                topic: found[1]
                for topic, found in done.items()
                if found and (topic not in self._moving or found[0] >= begin_ns)
            },
        )

    def _refuse_two_clocks(self, until_ns: int) -> None:
        """Raise `UserError` if ticks go on for far longer than messages do."""
        assert self._first_ns is not None
        most = max(track.total for track in (*self._observed.values(), *self._commands.values()))
        ahead_ns = until_ns - self._first_ns
        if ahead_ns / self._period_ns > MOST_TICKS_A_MESSAGE * most:
            raise UserError(
                f"the newest message was made {ahead_ns / 1e9:.0f} s after the first whole observation, "
                "with hardly a message in between; their stamps are of different clocks"
            )


class Track(Generic[Message]):
    """The messages of one topic in the order of their stamps; of equal ones the last received wins."""

    def __init__(self) -> None:
        self.total = 0
        self.first_ns = self.newest_ns = 0
        self.messages: list[tuple[int, Message]] = []
        """Those that were not forgotten, each after its stamp."""

    def add(self, stamp_ns: int, message: Message) -> None:
        """Take a message in place of one with the same stamp."""
        self.first_ns = min(stamp_ns, self.first_ns) if self.total else stamp_ns
        self.newest_ns = max(stamp_ns, self.newest_ns) if self.total else stamp_ns
        self.total += 1
        place = bisect_left(self.messages, stamp_ns, key=itemgetter(0))
        same = place < len(self.messages) and self.messages[place][0] == stamp_ns
        self.messages[place : place + same] = [(stamp_ns, message)]

    def newest(self, until_ns: int) -> tuple[int, Message] | None:
        """Return the newest message until then, and forget the older ones."""
        place = bisect_right(self.messages, until_ns, key=itemgetter(0)) - 1
        if place < 0:
            return None
        found = self.messages[place]
        del self.messages[:place]
        return found
