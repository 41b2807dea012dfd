"""Progress on stderr, as a bar or as lines of a log, and tables with long titles."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from operator import length_hint
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

Item = TypeVar("Item")
LINE_EVERY_S = 30.0
"""Seconds between two lines about the progress where no bar can be shown."""


def progress_bar(*columns: str | ProgressColumn) -> Progress:
    """Return a progress bar on stderr, which shows nothing if that is no terminal.

    columns: those of rich's default bar if there are none.
    """
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def track(items: Iterable[Item], description: str, *, total: int | None = None) -> Iterator[Item]:
    """Yield the items one by one while a bar, or lines of a log, show how many of `total` are done."""
    with progress_bar() as progress:
        if not progress.disable:
            yield from progress.track(items, total=total, description=description)
            return
        said = log_lines(total if total is not None else length_hint(items))
        for item in items:
            yield item
            said(description)


def log_lines(total: int) -> Callable[[str], None]:
    """Return what to call with a description after each of `total` items, where no bar can be shown.

    It prints how many are done, and the time left, every `LINE_EVERY_S` seconds. total: 0 if unknown.
    """
    begun = printed = time.monotonic()
    done = 0

    def said(description: str) -> None:
        nonlocal done, printed
        done, now = done + 1, time.monotonic()
        if now - printed < LINE_EVERY_S:
            return
        printed, elapsed_s = now, now - begun
        line = f"{description}: {done} done after {_duration(elapsed_s)}"
        if total:
            left_s = elapsed_s / done * (total - done)
            line = f"{description}: {done} of {total} after {_duration(elapsed_s)}, {_duration(left_s)} left"
        print(line, file=sys.stderr, flush=True)

    return said


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))


class TitledTable(Table):
    """A `rich.table.Table` whose title is a paragraph above it, as wide as the console.

    The title of a plain `Table` wraps at the width of the table. Options are those of `Table`.
    """

    def __init__(self, heading: str, **options: Any) -> None:
        super().__init__(**options)
        self.heading = heading

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.heading, style="table.title")
        yield from super().__rich_console__(console, options)
