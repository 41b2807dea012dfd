"""The keys of a terminal as a device, and the choice of the device by the parameter `source`."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rclpy.node import Node

from ttm.policy.errors import UserError
from ttm_policy.parameters import TeleopParameters
from ttm_policy.teleop.controls import (
    Controls,
    default_gamepad,
    default_keyboard,
    print_controls,
    read_controls,
)
from ttm_policy.teleop.gamepad import Gamepad
from ttm_policy.teleop.source import Source, TeleopContext, Wish
from ttm_policy.teleop.tracking import (
    JOY,
    LeaderArm,
    PoseTracker,
    default_leader,
    default_pose,
    print_tracking,
    read_tracking,
)

HOLD_S = 0.25
"""How long a key counts as held after it was read.

A terminal tells no releases: a key that is held is read again and again, after a first pause. A tap is
therefore a short nudge, and the robot stops this long after a key was released.
"""
SPEED_STEPS = {"+": 1.25, "-": 1 / 1.25}
"""Key -> what all speeds are multiplied by."""

OnKey = Callable[[str], None]


class Keyboard(Source):
    """Reads keys.

    read: returns the name of the next key that was pressed, or None, without waiting. on_other_key: called
    with every key that drives nothing.
    """

    name = "keyboard"
    timeout_s = HOLD_S

    def __init__(
        self, controls: Controls, read: Callable[[], str | None], on_other_key: OnKey
    ) -> None:
        self._controls, self._read, self._on_other_key = controls, read, on_other_key
        self._pressed_s: dict[str, float] = {}
        self._known = {key for drive in controls.map.drives for key in (drive.plus, drive.minus)}

    def wish(self, now_s: float) -> Wish | None:
        """Return what the keys ask for that are held now."""
        while (key := self._read()) is not None:
            self._take(key, now_s)
        held = {key for key, at_s in self._pressed_s.items() if now_s - at_s <= HOLD_S}
        values = self._controls.wish(lambda key: float(key in held), now_s)
        return None if values is None else Wish(values, max(self._pressed_s.values()))

    def _take(self, key: str, now_s: float) -> None:
        if key in self._known:
            self._pressed_s[key] = now_s
        elif key == self._controls.map.gives_back:
            self._gives_back = True
            self._pressed_s.clear()
        elif key in SPEED_STEPS:
            self._controls.factor *= SPEED_STEPS[key]
            print(f"speed: {self._controls.factor:.0%}", flush=True)
        else:
            self._on_other_key(key)


ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_NAMED = {
    **{f"\x1b{mode}{key}": name for mode in "[O" for key, name in ARROWS.items()},
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


def make_source(
    node: Node, context: TeleopContext, parameters: TeleopParameters, on_other_key: OnKey
) -> Source:
    """Return the device, and print its controls.

    on_other_key: called with every key of the terminal that drives nothing. Raises `UserError` for
    controls that do not fit the action.
    """
    device, path, spec = parameters.source, parameters.controls, context.spec
    if device == "keyboard" or device == "gamepad":
        default = default_keyboard if device == "keyboard" else default_gamepad
        chosen = read_controls(path, device, spec) or default(context)
        print(print_controls(chosen, device, spec), flush=True)
        controls = Controls(chosen, context)
        if device == "gamepad":
            return Gamepad(controls, node, JOY)
        return Keyboard(controls, read_key, on_other_key)
    known = default_pose(context) if device == "pose" else default_leader(context)
    tracking = read_tracking(path, device, known, spec)
    print(print_tracking(tracking, device, spec), flush=True)
    return (PoseTracker if device == "pose" else LeaderArm)(node, context, tracking)
