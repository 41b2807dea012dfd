"""Lines about the progress of long commands."""

from __future__ import annotations

from rich.console import Console


def print_progress(line: str) -> None:
    """Print one line to stderr at once, so that stdout holds nothing but the results."""
    Console(stderr=True, highlight=False).print(line, soft_wrap=True, markup=False)
