"""Where a conversion writes: to a partial name, which gets its final name when all is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path

from ttm.datasets.access.leftovers import writing_in
from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError
from ttm.policy.files import flush_to_disk, partial_path, publish_partial


def write_whole(
    target: Path, write: Callable[[Path], None], *, contents: Iterable[str], overwrite: bool
) -> None:
    """Let `write` make a file or folder at a partial name, and then rename it to `target`.

    A kill at any moment leaves either nothing or what was there before at `target`, beside a hidden
    `.<name>.partial` that no reader takes for data and that the next try replaces. Only between
    the two renames that replace a folder, the old one has the name `.<name>.old`.

    contents: glob patterns of what may be in a folder that is overwritten.
    Raises `UserError` if `target` exists and may not be overwritten, or cannot be written.
    """
    refuse_overwriting(target, contents, overwrite)
    partial = partial_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with writing_in(target.parent):
            try:
                _remove(partial)
                write(partial)
                _publish(target)
            finally:
                _remove(partial)
    except OSError as error:
        raise UserError(
            f"cannot write {target} ({one_line(error.strerror or error)}); is there space, and may you write?"
        ) from error


def refuse_overwriting(target: Path, contents: Iterable[str], overwrite: bool) -> None:
    """Raise `UserError` if `target` exists and may not be replaced."""
    if not target.exists():
        return
    if not overwrite:
        raise UserError(f"{target} exists already; give another name, or --overwrite")
    if target.is_dir():
        patterns = tuple(contents)
        other = [
            item.name
            for item in target.iterdir()
            if not any(fnmatch(item.name, pattern) for pattern in patterns)
        ]
        if other:
            raise UserError(
                f"{target} holds {min(other)}, which is no part of a data set of this format; "
                "--overwrite does not replace it: give another name"
            )


def require_apart(source: str | Path, target: Path) -> None:
    """Raise `UserError` if what is written would be part of what is read, or the other way round."""
    ours, theirs = target.resolve(), Path(source).expanduser().resolve()
    if ours == theirs or ours in theirs.parents or (theirs.is_dir() and theirs in ours.parents):
        raise UserError(f"{target} and {source} lie within each other; give another place")


def _publish(target: Path) -> None:
    if partial_path(target).is_file() and not target.is_dir():
        publish_partial(target)
    else:
        _publish_folder(target)


def _publish_folder(target: Path) -> None:
    partial, old = partial_path(target), target.with_name(f".{target.name}.old")
    for folder, _, names in os.walk(partial):
        for name in [*names, ""]:
            flush_to_disk(Path(folder, name))
    if target.exists():
        _remove(old)
        target.rename(old)
    partial.rename(target)
    flush_to_disk(target.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
