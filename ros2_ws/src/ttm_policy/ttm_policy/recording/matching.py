"""Which messages belong to which tick, for recorded bags and for recording live.

The first tick is when every observation has been seen once; the others follow at the control rate,
until the last command. A tick's observation is the newest message of each topic that was made until
then. Its action are the newest commands that were made from then until the next tick. If there is
none, a robot that moves by velocity stands still, and others hold their last command.

Where actions are measured, ticks need no command: the last one is that before the newest observation.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, TypeVar

from ttm.policy.errors import UserError

Message = TypeVar("Message")
MOST_TICKS_A_MESSAGE = 100
"""More ticks for each message of the fullest topic mean that stamps are of different clocks."""


@dataclass(frozen=True)
class Topics:
    """The topics of a contract. If parts of the action are `measured`, an episode needs no command."""

    observed: frozenset[str]
    commands: frozenset[str]
    moving: frozenset[str]
    measured: bool = False


@dataclass(frozen=True)
class Tick(Generic[Message]):
    """The newest message of each observed topic, when it was made, and the commands of one tick."""

    observation: Mapping[str, Message]
    stamps_ns: Mapping[str, int]
    command: Mapping[str, Message]

    @property
    def captured_ns(self) -> int:
        """When the newest message of the observation was made."""
        return max(self.stamps_ns.values())

    def earlier(self, by_ns: int) -> Tick[Message]:
        """Return the tick with observations that were made so much earlier."""
        stamps_ns = {topic: stamp_ns - by_ns for topic, stamp_ns in self.stamps_ns.items()}
        return replace(self, stamps_ns=stamps_ns)


class TickMatcher(Generic[Message]):
    """Takes messages in the order in which they were received, and gives the ticks that they make."""

    def __init__(self, topics: Topics, rate_hz: float, start_ns: int | None = None) -> None:
        """start_ns: older observations are not used. Commands are, since they are still in force."""
        self._observed = {topic: Track[Message]() for topic in topics.observed}
        self._commands = {topic: Track[Message]() for topic in topics.commands}
        self._topics, self._period_ns, self._earliest_ns = topics, 1e9 / rate_hz, start_ns
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
        return max(whole - self._topics.measured, 0)

    @property
    def _last_ns(self) -> int | None:
        if not self._topics.measured:
            return self._last_command_ns
        return None if self.unseen else min(t.newest_ns for t in self._observed.values())

    def begin_at(self, first_ns: int) -> None:
        """Let the first tick begin then, if every topic was seen until then."""
        if self.start_ns is not None:
            self._first_ns = max(first_ns, self.start_ns)

    def begin_ns(self, tick: int) -> int:
        """Return when a tick begins, in ns. Every topic must have a message."""
        assert self.start_ns is not None
        return self.start_ns + round(tick * self._period_ns)

    def ticks(self, until_ns: int) -> Iterator[Tick[Message]]:
        """Yield the ticks that end until then; what is added later for one of them comes too late."""
        while self.start_ns is not None and self.begin_ns(self._given + 1) <= until_ns:
            yield self._next(until_ns)

    def finish(self) -> Iterator[Tick[Message]]:
        """Yield the ticks that are left, until the last command, or the one that measures the last tick."""
        while self.num_ticks and self._given < self.num_ticks + self._topics.measured:
            assert self._last_ns is not None
            yield self._next(self._last_ns)

    def _next(self, until_ns: int) -> Tick[Message]:
        """Return the next tick. Raises `UserError` if ticks go on for far longer than messages do."""
        self._first_ns = self.start_ns
        assert self._first_ns is not None
        most = max(track.total for track in (*self._observed.values(), *self._commands.values()))
        ahead_ns = until_ns - self._first_ns
        if ahead_ns / self._period_ns > MOST_TICKS_A_MESSAGE * most:
            raise UserError(
                f"{ahead_ns / 1e9:.0f} s have hardly a message; their stamps are of different clocks"
            )
        begin_ns, end_ns = self.begin_ns(self._given), self.begin_ns(self._given + 1)
        self._given += 1
        observation, stamps_ns, command = {}, {}, {}
        for topic, track in self._observed.items():
            if found := track.newest(begin_ns):
                stamps_ns[topic], observation[topic] = found
        for topic, track in self._commands.items():
            found = track.newest(end_ns - 1)
            if found and (topic not in self._topics.moving or found[0] >= begin_ns):
                command[topic] = found[1]
        return Tick(observation, stamps_ns, command)


class Track(Generic[Message]):
    """The messages of one topic by their stamps; of equal ones the last received wins."""

    def __init__(self) -> None:
        self.total = 0
        self.first_ns = self.newest_ns = 0
        self.messages: list[tuple[int, Message]] = []

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


# When messages were made: by the stamps in their headers, or else by when they were published.

HEADER = {False: ">iI", True: "<iI"}
"""How a stamp lies at the start of a message, by whether it is little-endian."""
HEADER_END = 12
"""The bytes of a message up to the end of its stamp."""
MOST_NOTES = 4096
"""At least half as many pairs of times are remembered, and messages that wait for one."""
SET_NS = 500_000_000
"""Times that are so far from their order are those of a clock that was set."""

Stamped = tuple[str, int, Any]
"""The topic of a message, its stamp in ns, and the message."""


def header_ns(data: Any) -> int:
    """Return the stamp (ns) of a serialised message that starts with a header; 0 if it is cut short."""
    if len(data) < HEADER_END:
        return 0
    seconds, nanoseconds = struct.unpack_from(HEADER[bool(data[1] & 1)], data, 4)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


class Stamper:
    """Gives messages without a stamp the time at which they were published, on the stamps' clock.

    In simulation, stamps are in simulated time, but the middleware says in system time when a message was
    published. A message was then made at the newest stamp that had been published before it. In lockstep this
    is exact. Each call returns the messages whose stamps are known by it.
    """

    def __init__(self, *, simulated: bool) -> None:
        """simulated: whether the stamps are in simulated time."""
        self._simulated = simulated
        self._notes: list[tuple[int, int]] = []
        """When something was published, and the newest stamp until then, in this order."""
        self._waiting: list[tuple[int, str, Any]] = []

    def take(self, topic: str, stamp_ns: int, published_ns: int, message: Any) -> list[Stamped]:
        """Take a message. stamp_ns: that of its header, or 0 without one."""
        if stamp_ns or not self._simulated:
            return [(topic, stamp_ns or published_ns, message)]
        self._waiting.append((published_ns, topic, message))
        if len(self._waiting) > MOST_NOTES:  # no observation says what time it is
            del self._waiting[: MOST_NOTES // 2]
        return []

    def note(self, stamp_ns: int, published_ns: int) -> list[Stamped]:
        """Learn that an observation with this stamp was published then."""
        if not self._simulated:
            return []
        released: list[Stamped] = []
        if self._contradicts(stamp_ns, published_ns):
            released = self.flush()
            self._notes = []
        place = bisect_right(self._notes, published_ns, key=itemgetter(0))
        newest_ns = max(stamp_ns, self._notes[place - 1][1]) if place else stamp_ns
        later = [(when_ns, max(stamp, newest_ns)) for when_ns, stamp in self._notes[place:]]
        self._notes[place:] = [(published_ns, newest_ns), *later]
        if len(self._notes) > MOST_NOTES:
            del self._notes[: MOST_NOTES // 2]
        return released + self._release(published_ns)

    def flush(self) -> list[Stamped]:
        """Return all messages that wait for something to be published after them."""
        return self._release(None)

    def _contradicts(self, stamp_ns: int, published_ns: int) -> bool:
        """Return whether the simulation has begun again, or the system clock was set back."""
        if not self._notes:
            return False
        newer_ns = (published_ns - self._notes[-1][0], stamp_ns - self._notes[-1][1])
        return min(newer_ns) < -SET_NS and max(newer_ns) > 0

    def _release(self, before_ns: int | None) -> list[Stamped]:
        """Return the messages that were published before a time, or all."""
        released: list[Stamped] = []
        waiting, self._waiting = self._waiting, []
        for published_ns, topic, message in waiting:
            if before_ns is not None and published_ns >= before_ns:
                self._waiting.append((published_ns, topic, message))
                continue
            place = bisect_right(self._notes, published_ns, key=itemgetter(0))
            if place:  # before the first stamp, nothing is recorded
                released.append((topic, self._notes[place - 1][1], message))
        return released
