"""Earlier versions of the episodes of a folder, kept so that each change can be undone.

    <folder>/.ttm_undo/000003/edit.json    what was done to which files, and what they were then
    <folder>/.ttm_undo/000003/0, 1, …      the files as they were before

The earlier versions are hard links where the file system has them, so that keeping one takes no time,
and space only for what was changed. Readers of episodes skip hidden folders.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError
from ttm.policy.files import flush_to_disk, partial_path, write_json

FOLDER = ".ttm_undo"
LOCK = "lock"
EDIT = "edit.json"

State = list[int] | None
"""Size and time of change (ns) of a file, by which a later change is noticed; None without the file."""


@dataclass(frozen=True)
class Edit:
    """One change that can be undone: what it was, and the files that it changed."""

    what: str
    files: tuple[Path, ...]


class History:
    """The changes of the episodes in one folder.

    Parameters
    ----------
    folder
        The folder that the changed files lie in, at any depth.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = folder / FOLDER

    def change(self, what: str, files: Sequence[Path], change: Callable[[Path], None]) -> None:
        """Keep all files as they are, and then let `change` change each.

        If it raises, all files are put back, and the error goes on. After a kill in between, `undo`
        puts them back.
        """
        with self._locked():
            entry = self._keep(what, files)
            try:
                for file in files:
                    change(file)
            except BaseException:
                self._restore(entry)
                raise
            self._note(entry, what, files, after=[_state(file) for file in files])

    def undo(self) -> Edit:
        """Take back the newest change, and return it.

        Raises `UserError` if there is none, or if one of its files was changed again since then.
        """
        with self._locked():
            entries = self._entries()
            if not entries:
                raise UserError(
                    f"nothing to undo in {self.folder}; name the folder or file that was edited"
                )
            what, files, after = self._read(entries[-1])
            for number, (file, state) in enumerate(zip(files, after, strict=True)):
                if (entries[-1] / str(number)).exists():  # or else an undo before put it back
                    _refuse_changed(file, state)
            self._restore(entries[-1])
        return Edit(what, tuple(files))

    def count(self) -> int:
        """Return how many changes can be undone."""
        return len(self._entries())

    def forget(self) -> int:
        """Delete all earlier versions, which frees their space; return how many changes they were of."""
        with self._locked():
            entries = self._entries()
            for entry in entries:
                _drop(entry)
        return len(entries)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Make changes of other processes wait. Raises `UserError` if the folder cannot be written."""
        try:
            self._store.mkdir(exist_ok=True)
            with FileLock(self._store / LOCK):
                yield
        except OSError as error:
            raise UserError(
                f"cannot change {self.folder} ({one_line(error.strerror or error)}); is there space, and "
                "may you write?"
            ) from error

    def _entries(self) -> list[Path]:
        found = self._store.iterdir() if self._store.is_dir() else ()
        return sorted(item for item in found if item.name.isdecimal())

    def _keep(self, what: str, files: Sequence[Path]) -> Path:
        """Return the new entry, which has its name when all files are kept."""
        entries = self._entries()
        entry = self._store / f"{int(entries[-1].name) + 1 if entries else 0:06d}"
        partial = partial_path(entry)
        shutil.rmtree(partial, ignore_errors=True)  # of a change that was killed
        partial.mkdir()
        for number, file in enumerate(files):
            _link(file, partial / str(number))
        self._note(partial, what, files, after=None)
        partial.rename(entry)
        flush_to_disk(self._store)
        return entry

    def _note(
        self, entry: Path, what: str, files: Sequence[Path], after: Sequence[State] | None
    ) -> None:
        folder = self.folder.resolve()
        names = [os.path.relpath(file.parent.resolve() / file.name, folder) for file in files]
        write_json(entry / EDIT, {"what": what, "files": names, "after": after})

    def _read(self, entry: Path) -> tuple[str, list[Path], list[Any]]:
        """Return what was done, to which files, and their states since: "unknown" after a kill."""
        try:
            data = json.loads((entry / EDIT).read_text(encoding="utf-8"))
            files = [self.folder / str(name) for name in data["files"]]
            after = data["after"] or ["unknown"] * len(files)
            if not all(_is_below(file, self.folder) for file in files) or len(after) != len(files):
                raise ValueError("its files lie elsewhere")
            return str(data["what"]), files, list(after)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{entry}: it does not say what was changed ({one_line(error)}); move its files to "
                "where you want them"
            ) from error

    def _restore(self, entry: Path) -> None:
        """Put all files back. A second try after a kill goes on where the first one ended."""
        for number, file in enumerate(self._read(entry)[1]):
            kept = entry / str(number)
            if kept.exists():
                kept.replace(file)
                flush_to_disk(file.parent)
        _drop(entry)


def history_of(place: Path) -> History:
    """Return the history that a file or folder belongs to. Raises `UserError` if it is not there."""
    if place.is_dir():
        return History(place)
    if place.exists() or (place.parent / FOLDER).is_dir():
        return History(place.parent)
    raise UserError(f"{place} is not there; give a file or folder of episodes")


def _drop(entry: Path) -> None:
    """Delete an entry. A kill leaves the whole entry, or none that can be undone."""
    gone = partial_path(entry)
    shutil.rmtree(gone, ignore_errors=True)
    entry.rename(gone)
    shutil.rmtree(gone)


def _is_below(file: Path, folder: Path) -> bool:
    return file.parent.resolve().is_relative_to(folder.resolve())


def _link(file: Path, kept: Path) -> None:
    try:
        os.link(os.path.realpath(file), kept)
    except OSError:  # the file system has no hard links
        shutil.copy2(file, kept)
        flush_to_disk(kept)


def _state(file: Path) -> State:
    if not file.exists():
        return None
    return [file.stat().st_size, file.stat().st_mtime_ns]


def _refuse_changed(file: Path, after: Any) -> None:
    if after != "unknown" and _state(file) != after:
        what = "was changed again" if after else "was recorded again"
        raise UserError(
            f"{file} {what} since the edit, and undoing would lose it; move it elsewhere first"
        )
