"""Makes the source that the parameter `source` names."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rclpy.node import Node

from ttm.policy.errors import UserError
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.controls import (
    ControlMap,
    Controls,
    default_gamepad,
    default_keyboard,
    print_controls,
    read_controls,
)
from ttm_policy.teleop.gamepad import Gamepad
from ttm_policy.teleop.hands import (
    JOY,
    Hand,
    HandMap,
    LeaderArm,
    PoseHand,
    default_leader,
    default_pose,
    print_hand,
    read_hand,
)
from ttm_policy.teleop.source import Cockpit, Source, Wish

# Drives by the keys of a terminal.

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


# Reads single keys from the terminal, without waiting for them.

_NAMED = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    "\x7f": "backspace",
}
ESCAPE = "\x1b"
LONGEST = 3
"""The length of the sequences above."""


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Let the terminal give each key at once, without showing it, until the `with` block ends.

    Raises `UserError` if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UserError("keys need a terminal; start the node in one, or use the services")
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def read_key() -> str | None:
    """Return the next key that was pressed, or None. A closed terminal reads as `q`.

    Arrows, enter, tab and backspace have names; all other keys are their character.
    """
    key = _read()
    if key is None:
        return None
    while key.startswith(ESCAPE) and len(key) < LONGEST and (more := _read()) is not None:
        key += more
    return _NAMED.get(key, key)


def _read() -> str | None:
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"


OnKey = Callable[[str], None]


def make_source(
    node: Node, cockpit: Cockpit, parameters: TeleopParameters, on_other_key: OnKey
) -> Source:
    """Return the device, and print its controls.

    on_other_key: called with every key of the terminal that drives nothing. Raises `UserError` for
    controls that do not fit the action.
    """
    return _MAKERS[parameters.source](node, cockpit, parameters.controls, on_other_key)


def _keyboard(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    chosen = _controls(cockpit, controls, "keyboard", default_keyboard)
    return Keyboard(cockpit.controls(chosen), read_key, on_other_key)


def _gamepad(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    chosen = _controls(cockpit, controls, "gamepad", default_gamepad)
    return Gamepad(cockpit.controls(chosen), node, JOY)


def _pose(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    return PoseHand(node, cockpit, _hand(cockpit, controls, "pose", default_pose))


def _leader(node: Node, cockpit: Cockpit, controls: str, on_other_key: OnKey) -> Source:
    return LeaderArm(node, cockpit, _hand(cockpit, controls, "leader", default_leader))


_MAKERS: Mapping[str, Callable[[Node, Cockpit, str, OnKey], Source]] = {
    "keyboard": _keyboard,
    "gamepad": _gamepad,
    "pose": _pose,
    "leader": _leader,
}


def _hand(
    cockpit: Cockpit, path: str, device: Hand, default: Callable[[Cockpit], HandMap]
) -> HandMap:
    """Return what the file says of the hand, completed by what follows from the contract."""
    known = default(cockpit)
    chosen = read_hand(path, device, known, cockpit.spec) if path else known
    print(print_hand(chosen, device, cockpit.spec), flush=True)
    return chosen


def _controls(
    cockpit: Cockpit,
    path: str,
    device: str,
    default: Callable[..., ControlMap],
) -> ControlMap:
    """Return the controls that the file names, or else the default ones."""
    found = read_controls(path, device, cockpit.spec) if path else None
    chosen = found or default(cockpit.contract, cockpit.spec, cockpit.limits)
    print(print_controls(chosen, device, cockpit.spec), flush=True)
    return chosen
