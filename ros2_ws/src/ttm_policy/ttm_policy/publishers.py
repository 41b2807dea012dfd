"""Tells the publishers of a topic apart. rclpy names the sender of a message from Kilted on, not in Jazzy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MessageInfo = Mapping[str, Any]
"""What a callback with two arguments gets beside its message. Jazzy has no type for it."""


def publisher_of(info: MessageInfo) -> bytes | None:
    """Return the identity (GID) of the sender of a message, or None where rclpy does not tell it."""
    gid = info.get("publisher_gid")
    return bytes(gid["data"]) if gid else None


MOST_SENDERS = 1024
"""So many publishers are remembered, those that were heard last."""


class LossCounter:
    """Finds messages that never arrived, from the numbers that each publisher gives to its messages.

    Without the sender's identity, numbers are compared only while the topic has a single publisher: those of
    two look like gaps.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes | None], int] = {}

    def lost(self, topic: str, info: MessageInfo, publishers: int) -> int:
        """Return how many of the sender's messages were lost before it. publishers: those of the topic."""
        key, number = (topic, publisher_of(info)), info["publication_sequence_number"]
        before = self._numbers.pop(key, None)
        if number is None or (key[1] is None and publishers != 1):
            return 0
        self._numbers[key] = number
        if len(self._numbers) > MOST_SENDERS:
            del self._numbers[next(iter(self._numbers))]
        return 0 if before is None else max(0, number - before - 1)
