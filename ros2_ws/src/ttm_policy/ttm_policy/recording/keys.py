"""Keys of the terminal that start and stop episodes."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from ttm.policy.errors import UserError
from ttm_policy.recording.recorder import Recorder, attempt
from ttm_policy.recording.session import State

HELP = "space: start, or stop as a success; f: stop as a failure; d: discard; u: undo the last; q: quit"


class Keys:
    """Reads keys without waiting for them. `quit` becomes True when `q` was pressed."""

    def __init__(self) -> None:
        self.quit = False

    def handle(self, recorder: Recorder | None) -> None:
        """Do what the keys that were pressed say, and print what happens."""
        while (key := _pressed()) is not None:
            self._handle(key, recorder)

    def _handle(self, key: str, recorder: Recorder | None) -> None:
        if key == "q":
            self.quit = True
        elif recorder is None:
            print("the recorder is not configured", flush=True)
        elif key in _CALLS:
            _, text = attempt(lambda: _CALLS[key](recorder))
            print(text, flush=True)
        else:
            print(HELP, flush=True)


def _start_or_stop(recorder: Recorder) -> str:
    recording = recorder.session.state is State.RECORDING
    return recorder.stop(success=True) if recording else recorder.start()


_CALLS = {
    " ": _start_or_stop,
    "f": lambda recorder: recorder.stop(success=False),
    "d": lambda recorder: recorder.session.discard(),
    "u": lambda recorder: recorder.session.undo(),
}


@contextmanager
def reading_keys() -> Iterator[Keys]:
    """Let the terminal give each key at once, without showing it, until the `with` block ends.

    Raises `UserError` if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UserError("keys need a terminal; set keys:=false, and use the services")
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        print(HELP, flush=True)
        yield Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed() -> str | None:
    """Return a key that was pressed, or None. A closed terminal reads as `q`."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"
