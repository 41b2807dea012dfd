"""Which page drives the robot. It uses no server and no ROS, so that tests can set the time."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ttm.policy.errors import UserError

Axes = Mapping[str, float]
"""How far each control is moved, -1 to 1, by its name. Those that are not named are at rest."""


class Wheel:
    """Gives the controls to one page at a time, and takes them from a page that falls silent.

    It is used from the server's thread and from that of the node.

    Parameters
    ----------
    timeout_s
        The longest silence of the page that drives. After it the robot stops, and another page may
        drive.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._page: str | None = None
        self._axes: dict[str, float] = {}
        self._heard_s = 0.0
        self._gives_back = False

    def take(self, page: str, now_s: float) -> None:
        """Let a page drive. Raises `UserError` if another one does."""
        with self._lock:
            if self._driving(now_s) not in (None, page):
                raise UserError("somebody else drives; ask them to let go first")
            self._page, self._axes, self._heard_s = page, {}, now_s

    def release(self, page: str, *, back: bool = False) -> None:
        """Take the controls from a page, if it has them. back: whether a policy is to drive again."""
        with self._lock:
            if self._page == page:
                self._page, self._axes = None, {}
                self._gives_back |= back

    def stop(self) -> None:
        """Take the controls from whichever page has them."""
        with self._lock:
            self._page, self._axes = None, {}

    def gives_back(self) -> bool:
        """Return whether a page has asked, since the last call, that a policy drives again."""
        with self._lock:
            asked, self._gives_back = self._gives_back, False
            return asked

    def steer(self, page: str, axes: Axes, now_s: float) -> None:
        """Take the positions of the controls from the page that drives.

        Raises `UserError` if it does not drive, or does not drive any more.
        """
        with self._lock:
            if self._driving(now_s) != page:
                raise UserError("this page does not drive; take the controls first")
            self._axes, self._heard_s = dict(axes), now_s

    def driver(self, now_s: float) -> str | None:
        """Return the page that drives, or None."""
        with self._lock:
            return self._driving(now_s)

    def held(self, now_s: float) -> tuple[Axes, float] | None:
        """Return the positions of the controls and when they were heard, or None if nobody drives."""
        with self._lock:
            return None if self._driving(now_s) is None else (self._axes, self._heard_s)

    def _driving(self, now_s: float) -> str | None:
        if self._page is not None and now_s - self._heard_s > self.timeout_s:
            self._page, self._axes = None, {}
        return self._page
