"""When messages were made: by the stamps in their headers, or else by when they were published."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

HEADER = {False: ">iI", True: "<iI"}
"""How a stamp lies at the start of a message, by whether it is little-endian."""

HEADER_END = 12
"""The bytes of a message up to the end of its stamp."""

MOST_NOTES = 4096
"""At least half as many pairs of times are remembered, and messages that wait for one."""

SET_NS = 500_000_000
"""Times that are so far from their order tell of a clock that was set."""

Deliver = Callable[[str, int, Any], None]


def header_ns(data: Any) -> int:
    """Return the stamp of a serialised message that starts with a header, in ns.

    It is 0 for a message that is cut short, which reading it tells.
    """
    if len(data) < HEADER_END:
        return 0
    seconds, nanoseconds = struct.unpack_from(HEADER[bool(data[1] & 1)], data, 4)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


class Stamper:
    """Gives messages without a stamp the time at which they were published, on the stamps' clock.

    On a robot, that is the system clock, and nothing is to be done. In simulation, stamps are in
    simulated time, but the middleware says in system time when a message was published. A message was
    then made at the newest stamp that had been published before it. In lockstep this is exact: the
    answer to an observation is published after it, and before the next one, however late each arrives.

    Parameters
    ----------
    deliver
        Called with the topic, the stamp in ns and the message, for each message.
    simulated
        Whether the stamps are in simulated time.
    """

    def __init__(self, deliver: Deliver, *, simulated: bool) -> None:
        self._deliver, self._simulated = deliver, simulated
        self._published_ns: list[int] = []
        self._stamps_ns: list[int] = []
        self._waiting: list[tuple[int, str, Any]] = []

    def take(self, topic: str, stamp_ns: int, published_ns: int, message: Any) -> None:
        """Take a message. stamp_ns: that of its header, or 0 without one."""
        if stamp_ns or not self._simulated:
            self._deliver(topic, stamp_ns or published_ns, message)
        else:
            self._waiting.append((published_ns, topic, message))
            if len(self._waiting) > MOST_NOTES:  # no observation tells the time
                del self._waiting[: MOST_NOTES // 2]

    def note(self, stamp_ns: int, published_ns: int) -> None:
        """Learn that an observation with this stamp was published then."""
        if not self._simulated:
            return
        if self._contradicts(stamp_ns, published_ns):
            self.flush()
            self._published_ns, self._stamps_ns = [], []
        place = bisect_right(self._published_ns, published_ns)
        newest = max(stamp_ns, self._stamps_ns[place - 1]) if place else stamp_ns
        self._published_ns.insert(place, published_ns)
        self._stamps_ns.insert(place, newest)
        for later in range(place + 1, len(self._stamps_ns)):
            self._stamps_ns[later] = max(self._stamps_ns[later], newest)
        if len(self._published_ns) > MOST_NOTES:
            del self._published_ns[: MOST_NOTES // 2], self._stamps_ns[: MOST_NOTES // 2]
        self._release(published_ns)

    def _contradicts(self, stamp_ns: int, published_ns: int) -> bool:
        """Return whether an observation is older than those before by one clock, and newer by the other.

        Either the simulation has begun again, or the clock of the system was set back.
        """
        if not self._stamps_ns:
            return False
        newer_ns = (stamp_ns - self._stamps_ns[-1], published_ns - self._published_ns[-1])
        return min(newer_ns) < -SET_NS and max(newer_ns) > 0

    def flush(self) -> None:
        """Deliver all messages that wait for something to be published after them."""
        self._release(None)

    def _release(self, before_ns: int | None) -> None:
        """Deliver the messages that were published before a time, or all."""
        waiting, self._waiting = self._waiting, []
        for published_ns, topic, message in waiting:
            if before_ns is not None and published_ns >= before_ns:
                self._waiting.append((published_ns, topic, message))
                continue
            place = bisect_right(self._published_ns, published_ns)
            if place:  # before the first stamp, nothing is recorded
                self._deliver(topic, self._stamps_ns[place - 1], message)
