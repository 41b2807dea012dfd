"""The process of a long run: its memory, and signals. This module imports no torch."""

from __future__ import annotations

import ctypes
import signal
from types import FrameType
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # parameters of mallopt(3)


def keep_freed_memory() -> None:
    """Make malloc keep large blocks, so that the kernel does not clear them in every training step.

    Does nothing where the C library has no mallopt(3), which is glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 * 2**20)


class Interruption:
    """Context manager that stores the first SIGINT or SIGTERM in `signal_number`.

    A second signal acts as it did before the context was entered.
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
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self.__exit__()
