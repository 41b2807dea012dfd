"""Keys of the terminal that start and stop episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

HELP = "space: start, or stop as a success; f: stop as a failure; d: discard; u: undo the last; q: quit"


class EpisodeCalls(Protocol):
    """What keys ask of a recorder. Each returns what happens, in words."""

    def start_or_stop(self) -> str: ...
    def stop_as_failure(self) -> str: ...
    def discard(self) -> str: ...
    def undo(self) -> str: ...


class Keys:
    """Does what keys say, and prints what happens. `quit` becomes True when `q` was pressed."""

    def __init__(self) -> None:
        self.quit = False

    def handle(self, key: str, calls: EpisodeCalls | None) -> None:
        """Take a key that was pressed. calls: the recorder, or None while there is none."""
        if key == "q":
            self.quit = True
        elif calls is None:
            print("the recorder is not configured", flush=True)
        elif key in _CALLS:
            print(_CALLS[key](calls), flush=True)
        else:
            print(HELP, flush=True)


_CALLS: Mapping[str, Callable[[EpisodeCalls], str]] = {
    " ": lambda calls: calls.start_or_stop(),
    "f": lambda calls: calls.stop_as_failure(),
    "d": lambda calls: calls.discard(),
    "u": lambda calls: calls.undo(),
}
