"""Ctrl-C and SIGTERM end a long run after the step it is in, so that it can save before it leaves."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """As a context, notes the first SIGINT or SIGTERM in `signal_number`; a second one acts as it always did."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What shells expect of a process that a signal ended: 130 after Ctrl-C, 143 after SIGTERM, else 0."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
