"""What `ttm data trim`, `label`, `delete` and `undo` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttm.datasets.edit.edit import (
    Labels,
    Success,
    delete_episodes,
    label_episodes,
    trim_episode,
    undo_edit,
)
from ttm.datasets.edit.history import history_of


def trim_and_report(path: Path, start: int, stop: int | None, demo: str | None) -> int:
    """Trim, print how many ticks are left, and return the exit code."""
    print(f"{path}: {trim_episode(path, start, stop, demo)} ticks are left")
    print(_how_to_undo(path))
    return 0


def label_and_report(
    path: str,
    demo: str | None,
    *,
    instruction: str | None,
    success: Success | None,
    task: str | None,
) -> int:
    """Label, print how many episodes there are, and return the exit code."""
    edited = label_episodes(path, Labels(instruction, success, task), demo)
    print(f"{path}: labelled {edited.count} episodes")
    print(_how_to_undo(edited.folder))
    return 0


def delete_and_report(paths: Sequence[Path], demo: str | None) -> int:
    """Delete, print how many episodes went, and return the exit code."""
    edited = delete_episodes(paths, demo)
    print(f"deleted {edited.count} episodes")
    print(_how_to_undo(edited.folder))
    return 0


def undo_and_report(place: Path, forget: bool) -> int:
    """Undo the newest edit, or forget all; print what was done, and return the exit code."""
    if forget:
        print(f"{place}: the earlier versions of {history_of(place).forget()} edits are deleted")
        return 0
    edit = undo_edit(place)
    for file in edit.files:
        print(f"{file}: undid {edit.what}")
    print(f"{history_of(place).count()} more edits can be undone")
    return 0


def _how_to_undo(place: Path) -> str:
    return f'to undo: ttm data undo "{place}"'
