"""The signals that end a process as a flag, so that no callback is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Ctrl-C, an end by launch or systemd, a closed terminal, and Ctrl-\\."""


class StopSignals:
    """`requested` becomes True at the first of `SIGNALS`.

    The handlers of rclpy must be off.
    """

    def __init__(self, deadline_s: float | None = None) -> None:
        """deadline_s: end the process at the latest that long after the signal; None for no limit."""
        self.requested = False
        self._deadline_s = deadline_s
        for number in SIGNALS:
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if not self.requested and self._deadline_s is not None:
            timer = threading.Timer(self._deadline_s, self._end)
            timer.daemon = True
            timer.start()
        self.requested = True

    def _end(self) -> None:
        print(
            f"the process did not end by itself within {self._deadline_s} s of the signal",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def end_process(code: int) -> NoReturn:
    """End the process at once. Call this when all is closed that others rely on.

    An ordinary exit takes down every library and its threads, which lasts seconds with torch, and waits
    for a network or a language model that is still at work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
