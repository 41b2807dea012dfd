"""SIGINT and SIGTERM as a flag, so that no callback is interrupted."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignals:
    """`requested` becomes True at the first SIGINT or SIGTERM.

    The handlers of rclpy must be off.
    """

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
