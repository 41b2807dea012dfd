"""One progress bar for everything long: on stderr, gone when it is done, and absent without a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

Item = TypeVar("Item")


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield `items` one by one under a bar named `what`."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, description=what)
