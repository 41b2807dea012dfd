"""Reads single keys from the terminal, without waiting for them."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from ttm.policy.errors import UserError

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
