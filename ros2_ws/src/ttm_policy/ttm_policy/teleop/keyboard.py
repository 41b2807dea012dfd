"""Drives by the keys of a terminal."""

from __future__ import annotations

from collections.abc import Callable

from ttm_policy.teleop.controls import Controls
from ttm_policy.teleop.source import Wish

HOLD_S = 0.25
"""How long a key counts as held after it was read.

A terminal tells no releases: a key that is held is read again and again, after a first pause. A tap is
therefore a short nudge, and the robot stops this long after a key was released.
"""
FASTER, SLOWER = "+", "-"
SPEED_STEP = 1.25


class Keyboard:
    """A `Source` that reads keys.

    Parameters
    ----------
    controls
        What the keys do.
    read
        Returns the name of the next key that was pressed, or None. It does not wait.
    on_other_key
        Called with every key that drives nothing.
    """

    name = "keyboard"
    timeout_s = HOLD_S
    problem = unheard = ""

    def __init__(
        self,
        controls: Controls,
        read: Callable[[], str | None],
        on_other_key: Callable[[str], None],
    ) -> None:
        self._controls, self._read, self._on_other_key = controls, read, on_other_key
        self._pressed_s: dict[str, float] = {}
        self._gives_back = False
        drives = controls.map.drives
        self._known = {key for drive in drives for key in (drive.plus, drive.minus) if key}

    def wish(self, now_s: float) -> Wish | None:
        """Return what the keys ask for that are held now."""
        while (key := self._read()) is not None:
            self._take(key, now_s)
        values = self._controls.wish(lambda key: self._is_held(key, now_s), now_s)
        return None if values is None else Wish(values, max(self._pressed_s.values()))

    def gives_back(self) -> bool:
        """Return whether its key was pressed since the last call."""
        asked, self._gives_back = self._gives_back, False
        return asked

    def close(self) -> None:
        """Forget all keys."""
        self._pressed_s.clear()

    def _take(self, key: str, now_s: float) -> None:
        if key in self._known:
            self._pressed_s[key] = now_s
        elif key == self._controls.map.gives_back:
            self._gives_back = True
            self._pressed_s.clear()
        elif key in (FASTER, SLOWER):
            self._controls.factor *= SPEED_STEP if key == FASTER else 1 / SPEED_STEP
            print(f"speed: {self._controls.factor:.0%}", flush=True)
        else:
            self._on_other_key(key)

    def _is_held(self, key: str, now_s: float) -> bool:
        return now_s - self._pressed_s.get(key, -float("inf")) <= HOLD_S
