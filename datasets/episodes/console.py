"""Progress bars on stderr, which show nothing if that is no terminal, and tables with long titles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

Item = TypeVar("Item")


def progress_bar(*columns: str | ProgressColumn) -> Progress:
    """Return a progress bar on stderr, which shows nothing if that is no terminal.

    columns: those of rich's default bar if there are none.
    """
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def track(items: Iterable[Item], description: str, *, total: int | None = None) -> Iterator[Item]:
    """Yield the items one by one while a bar shows how many of `total` are done."""
    with progress_bar() as progress:
        yield from progress.track(items, total=total, description=description)


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
