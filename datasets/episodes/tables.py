"""Tables on the console, with titles that do not wrap at the width of a narrow table."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


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
