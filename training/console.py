"""What commands print and write: tables, lines of progress, JSON files and folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console

from ttm.datasets.console import TitledTable
from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically


def compact_table(
    title: str, columns: Sequence[str], rows: Iterable[Iterable[object]] = ()
) -> TitledTable:
    """Return a table for 80 characters: text in the first column, which may wrap, figures in the others."""
    table = TitledTable(title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def write_figures(console: Console, path: Path | None, figures: str) -> None:
    """Write JSON to the file that the user gave as `--json`, if any, and print its name."""
    if path is not None:
        write_given(path, figures, "--json")
        console.print(f"figures: {path}", soft_wrap=True)


def write_given(path: Path, text: str, option: str) -> None:
    """Write the file that the user gave as `option`. Raises `UserError` if that fails."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error}); give another file with {option}"
        ) from error


def say(console: Console, *lines: str) -> None:
    """Print lines as they are, which the terminal wraps."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def print_progress(line: str) -> None:
    """Print one line to stderr at once, so that stdout holds nothing but the results."""
    say(Console(stderr=True), line)


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make the folder that the user gave as `option`, with its parents; return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {path} ({error}); give another folder with {option}"
        ) from error
    return path
