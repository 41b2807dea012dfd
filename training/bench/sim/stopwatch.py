"""Where the time of a call goes: the seconds of its parts, which may be nested."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Stopwatch:
    """Adds up the seconds of parts. What a part spends within another one counts for the inner one alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []  # for each part that is running: seconds of the parts in it

    def timed(self, part: str, call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return `call` such that its time counts for `part`."""

        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            self._inner.append(0.0)
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._add(part, time.perf_counter() - begun)

        return run

    def take(self) -> dict[str, float]:
        """Return part -> seconds since the last call of this method, and begin anew."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _add(self, part: str, seconds: float) -> None:
        own = seconds - self._inner.pop()
        self._seconds[part] = self._seconds.get(part, 0.0) + own
        if self._inner:
            self._inner[-1] += seconds
