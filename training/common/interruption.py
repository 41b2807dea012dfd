"""Handling of Ctrl-C and SIGTERM by a long run that has to save before it exits."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interruption:
    """Context manager that stores the first SIGINT or SIGTERM in `signal_number`.

    The run polls `signal_number` and stops when it is not None. A second signal acts as it did
    before the context was entered.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect: 130 after SIGINT, 143 after SIGTERM, otherwise 0."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
