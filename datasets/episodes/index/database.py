"""The index: what files of episodes said when they were last read, in an SQLite database of the user.

It holds nothing that the files do not say, and can be deleted at any time. An entry counts while its
file has the same size, the same time of modification and the same time of change.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TypeVar

VERSION = 3
"""Of the tables and of what is in them. A database of another version is replaced."""
UNUSED_DAYS = 90
"""Entries that were not used for so long are removed."""
WAIT_S = 10.0
"""How long a process waits for another one that writes."""
AT_ONCE = 500
"""Values in one query."""
VARIABLE = "TTM_INDEX"
"""The environment variable that names the database; `none` for no index."""

TABLES = """
CREATE TABLE files (path TEXT PRIMARY KEY, stamp TEXT, spec TEXT, key TEXT, facts TEXT, used INT);
CREATE TABLE descriptions (key TEXT PRIMARY KEY, text TEXT, used INT);
CREATE TABLE vectors (path TEXT, demo TEXT, stamp TEXT, data BLOB, PRIMARY KEY (path, demo));
"""

Found = TypeVar("Found")


@dataclass(frozen=True)
class FileRecord:
    """What is known of a file."""

    stamp: str
    """Its size and times when it was read; see `stamp_of`."""
    spec: str
    """The spec that it carries, as JSON; empty if it carries none."""
    key: str
    """Stands for the description by which `facts` were read."""
    facts: str
    """Its episodes, as JSON."""


def stamp_of(path: Path) -> str:
    """Return the size, modification time and change time of a file. Raises `OSError` if it is gone."""
    found = path.stat()
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def default_path() -> Path | None:
    """Return where the index of this user is, or None if it is switched off, or there is no home."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "none":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return Path(chosen).expanduser() if chosen else cache / "ttm" / "episodes.sqlite"
    except RuntimeError:  # no home
        return None


class EpisodeIndex:
    """One database. Where it cannot be read or written, it is empty and keeps nothing.

    Threads and processes may share it; a process that was forked opens it anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._lock = RLock()
        self._process = os.getpid()
        self._inherited: list[sqlite3.Connection | None] = []
        self._broken = False

    def __reduce__(self) -> tuple[type[EpisodeIndex], tuple[Path]]:
        return EpisodeIndex, (self._path,)

    def records(self, stamps: Mapping[Path, str]) -> dict[Path, FileRecord]:
        """Return what is known of those files that still have these stamps."""
        query = "SELECT path, stamp, spec, key, facts FROM files WHERE path IN ({})"
        rows = self._selected(query, [os.path.abspath(path) for path in stamps])
        by_name = {name: FileRecord(*values) for name, *values in rows}
        found = {path: by_name.get(os.path.abspath(path)) for path in stamps}
        return {
            path: record
            for path, record in found.items()
            if record is not None and record.stamp == stamps[path]
        }

    def store(self, records: Mapping[Path, FileRecord]) -> None:
        """Keep what was read of files, in place of what was known of them before."""
        now = int(time.time())
        rows = [
            (os.path.abspath(path), each.stamp, each.spec, each.key, each.facts, now)
            for path, each in records.items()
        ]

        def write(database: sqlite3.Connection) -> None:
            database.executemany("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)
            _clean(database, {str(Path(row[0]).parent) for row in rows}, now)

        self._do(write, None)

    def touch(self, paths: Iterable[Path]) -> None:
        """Note that the entries of these files are in use, once a week."""
        update = "UPDATE files SET used = ? WHERE path = ? AND used < ?"
        self._note_use(update, [os.path.abspath(path) for path in paths])

    def description(self, key: str) -> str | None:
        """Return the text that `store_description` kept under `key`, or None."""
        rows = self._selected("SELECT text FROM descriptions WHERE key IN ({})", [key])
        if not rows:
            return None
        self._note_use("UPDATE descriptions SET used = ? WHERE key = ? AND used < ?", [key])
        return rows[0][0]

    def store_description(self, key: str, text: str) -> None:
        """Keep the description of a data set, as JSON."""
        row = (key, text, int(time.time()))
        replace = "REPLACE INTO descriptions VALUES (?, ?, ?)"
        self._do(lambda database: database.execute(replace, row), None)

    def vectors(self, path: Path, demo: str, stamp: str) -> bytes | None:
        """Return what `store_vectors` kept for one demo of a file with this stamp, or None."""
        query = "SELECT data FROM vectors WHERE path = ? AND demo = ? AND stamp = ?"
        values = (os.path.abspath(path), demo, stamp)
        row = self._do(
            lambda database: database.execute(query, values).fetchone(), None, writes=False
        )
        return None if row is None else row[0]

    def store_vectors(self, path: Path, stamp: str, vectors: Mapping[str, bytes]) -> None:
        """Keep the vectors of demos of a file with this stamp, each under the demo's name."""
        name = os.path.abspath(path)
        rows = [(name, demo, stamp, data) for demo, data in vectors.items()]
        replace = "REPLACE INTO vectors VALUES (?, ?, ?, ?)"
        self._do(lambda database: database.executemany(replace, rows), None)

    def _note_use(self, update: str, names: Sequence[str]) -> None:
        now = int(time.time())
        rows = [(now, name, now - 7 * 86400) for name in names]
        if rows:
            self._do(lambda database: database.executemany(update, rows), None)

    def _selected(self, query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the rows of a query whose {} stands for a list of values."""

        def select(database: sqlite3.Connection) -> list[tuple[str, ...]]:
            found: list[tuple[str, ...]] = []
            for start in range(0, len(values), AT_ONCE):
                some = values[start : start + AT_ONCE]
                found += database.execute(query.format(", ".join("?" * len(some))), some).fetchall()
            return found

        return self._do(select, [], writes=False)

    def _do(
        self,
        work: Callable[[sqlite3.Connection], Found],
        otherwise: Found,
        *,
        writes: bool = True,
    ) -> Found:
        """Do `work` as one transaction; return `otherwise` if the database cannot be used.

        It is made when it is first written to.
        """
        if self._process != os.getpid():  # after a fork, lock and connection belong to another
            self._inherited.append(self._open)  # SQLite forbids even to close it here
            self._process, self._lock, self._open = os.getpid(), RLock(), None
        with self._lock:
            try:
                if self._broken or not (writes or self._path.exists()):
                    return otherwise
                if self._open is None:
                    self._open = _connected(self._path)
                with self._open:
                    return work(self._open)
            except (sqlite3.Error, OSError) as error:
                self._broken = True
                if (
                    type(error) is sqlite3.DatabaseError
                ):  # damaged: the next opening makes a new one
                    with suppress(OSError):
                        for ending in ("", "-wal", "-shm"):
                            Path(f"{self._path}{ending}").unlink(missing_ok=True)
                return otherwise


def _connected(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=WAIT_S, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")  # readers need not wait for a writer
    database.execute("PRAGMA synchronous = NORMAL")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        drops = "".join(
            f"DROP TABLE IF EXISTS {name};" for name in ("files", "descriptions", "vectors")
        )
        database.executescript(
            f"BEGIN IMMEDIATE;{drops}{TABLES}PRAGMA user_version = {VERSION};COMMIT;"
        )
    return database


def _clean(database: sqlite3.Connection, folders: Iterable[str], now: int) -> None:
    """Remove entries of files that are gone from these folders, and what was not used for long."""
    for folder in folders:
        below = (f"{folder}{os.sep}", f"{folder}{chr(ord(os.sep) + 1)}")
        rows = database.execute("SELECT path FROM files WHERE path > ? AND path < ?", below)
        gone = [(path,) for (path,) in rows.fetchall() if not os.path.exists(path)]
        database.executemany("DELETE FROM files WHERE path = ?", gone)
    limit = (now - UNUSED_DAYS * 86400,)
    database.execute("DELETE FROM files WHERE used < ?", limit)
    database.execute("DELETE FROM descriptions WHERE used < ?", limit)
    database.execute("DELETE FROM vectors WHERE path NOT IN (SELECT path FROM files)")
