"""Opening the files of a data set, each once, or not at all where the index knows them."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ttm.datasets.console import track
from ttm.datasets.description import Choices, Description, describe_bare, describe_stored
from ttm.datasets.episode_file import (
    damaged,
    data_group,
    demo_names,
    open_file,
    read_stored_spec,
    spec_of_text,
)
from ttm.datasets.files import layout_of_file
from ttm.datasets.frames import StoredCamera
from ttm.datasets.reader import Array, EpisodeReader, read_episodes
from ttm.datasets.spec_inference import Member
from ttm.policy.errors import UserError
from ttm.policy.spec import PolicySpec

# The index: what files of episodes said when they were last read, in an SQLite database of the user.
#
# It holds nothing that the files do not say, and can be deleted at any time. An entry counts while its
# file has the same size, the same time of modification and the same time of change.

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


# Episodes and descriptions of data sets as JSON, for the index.


def facts_key(described: Description) -> str:
    """Return what stands for a description: episodes that were read by it can be read by an equal one."""
    return _digest(described.spec.to_json(), _cameras_data(described.cameras))


def facts_text(episodes: Sequence[EpisodeReader]) -> str:
    """Return the facts of all episodes of a file as JSON."""
    demos = [
        [e.name, e.num_samples, e.instruction, e.task, e.success, e.seed, sorted(e.masks)]
        for e in episodes
    ]
    return json.dumps([_cameras_data(dict(episodes[0].stored) if episodes else {}), demos])


def episodes_of(text: str, path: Path, spec: PolicySpec) -> list[EpisodeReader]:
    """Return the episodes of the file `path` whose facts `facts_text` wrote."""
    cameras, demos = json.loads(text)
    stored = tuple(_cameras(cameras).items())
    return [
        EpisodeReader(
            path, name, spec, length, words, task, success, seed, frozenset(masks), stored
        )
        for name, length, words, task, success, seed, masks in demos
    ]


def description_key(stamps: Mapping[Path, str], choices: Choices, like: PolicySpec | None) -> str:
    """Return what stands for all that the description of files without a spec depends on.

    Raises `OSError` if the user's spec file cannot be read.
    """
    given = (
        "" if choices.spec is None else choices.spec.read_text(encoding="utf-8", errors="replace")
    )
    chosen = [list(choices.cameras), list(choices.proprioception), str(choices.spec), given]
    files = [[str(path.absolute()), stamp] for path, stamp in stamps.items()]
    return _digest(chosen, None if like is None else like.to_json(), files)


def description_text(described: Description) -> str:
    """Return a description as JSON."""
    members = [asdict(member) for member in described.members]
    cameras = _cameras_data(described.cameras)
    return json.dumps([described.spec.to_json(), members, cameras, described.note])


def description_of(text: str) -> Description:
    """Return the description that `description_text` wrote."""
    spec, members, cameras, note = json.loads(text)
    return Description(
        PolicySpec.from_json(spec),
        tuple(_member(member) for member in members),
        _cameras(cameras),
        note,
    )


def _member(data: dict[str, Any]) -> Member:
    shape = data.pop("shape")
    return Member(**data, shape=None if shape is None else tuple(shape))


def _cameras_data(cameras: Mapping[str, StoredCamera]) -> dict[str, Any]:
    return {name: asdict(camera) for name, camera in cameras.items()}


def _cameras(data: Mapping[str, dict[str, Any]]) -> dict[str, StoredCamera]:
    return {
        name: StoredCamera(**{**each, "values": tuple(each["values"])})
        for name, each in data.items()
    }


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# Actions, proprioception, weights and timestamps of episodes, kept in the index.
#
# A training reads them all when it starts, which takes an opening of each file. Frames are not kept.

DEMOS_AT_ONCE = 256
"""So many demos of a file are read while it is open, since those that follow are wanted next."""

OPTIONAL = {
    "executed_actions": np.float32,
    "interventions": np.bool_,
    "loss_weights": np.float32,
    "timestamps": np.float64,
}
"""Vectors that an episode may lack, with the types in which they are read."""


class IndexedVectors:
    """Gives the vectors of episodes from the index, to which those that it lacks are added."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index

    def vectors(self, episode: EpisodeReader) -> Mapping[str, Array] | None:
        """Return the vectors of an episode by their names in the file, each (T, …).

        Optional ones are left out if it has none. None if the file is gone or damaged.
        """
        try:
            stamp = stamp_of(episode.path)
            kept = self._index.vectors(episode.path, episode.name, stamp)
            arrays = None if kept is None else load(kept)
        except (OSError, SafetensorError):
            return None
        wanted = set(_required(episode.spec))
        if arrays is None or not wanted <= arrays.keys():
            arrays = self._read(episode, stamp).get(episode.name)
        return arrays

    def _read(self, episode: EpisodeReader, stamp: str) -> dict[str, dict[str, Array]]:
        """Read the vectors of an episode and of those that follow it in the file, and keep them."""
        try:
            with open_file(episode.path) as file:
                found = dict(_whole(file, episode))
        except UserError:
            return {}
        kept = {name: save(arrays) for name, arrays in found.items()}
        self._index.store_vectors(episode.path, stamp, kept)
        return found


def _whole(file: Any, episode: EpisodeReader) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield the name and vectors of each of the next episodes that is whole."""
    names = demo_names(file)
    first = names.index(episode.name)
    for name in names[first : first + DEMOS_AT_ONCE]:
        arrays = _arrays(file["data"][name], episode.spec)
        if arrays is not None:
            yield name, arrays


def _arrays(demo: Any, spec: PolicySpec) -> dict[str, Array] | None:
    """Return the vectors of a demo; None if one is missing, or of another length than the actions."""
    types: dict[str, Any] = dict.fromkeys(_required(spec), np.float32)
    types |= {key: kind for key, kind in OPTIONAL.items() if key in demo}
    if any(key not in demo or not getattr(demo[key], "shape", None) for key in types):
        return None
    arrays = {key: np.ascontiguousarray(demo[key], dtype=kind) for key, kind in types.items()}
    return arrays if len({len(array) for array in arrays.values()}) == 1 else None


def _required(spec: PolicySpec) -> list[str]:
    return ["actions", *(f"obs/{vector.name}" for vector in spec.proprioception)]


INDEX_FROM = 200
"""Smaller data sets open in a second or so, and are not put into the index."""


class Opening:
    """One opening of a data set. The arguments are those of `open_dataset`."""

    def __init__(
        self,
        files: Sequence[Path],
        choices: Choices,
        given: PolicySpec | None = None,
        like: PolicySpec | None = None,
    ) -> None:
        self._files = files
        self._choices, self._given, self._like = choices, given, like
        place = None if choices.allow_external else default_path()
        self._index = None if place is None else EpisodeIndex(place)
        self._stamps = {} if self._index is None else _stamps(files)
        self._records = {} if self._index is None else self._index.records(self._stamps)
        self._read: dict[Path, list[EpisodeReader]] = {}
        self._specs: dict[Path, PolicySpec | None] = {}

    @cached_property
    def described(self) -> Description:
        """The description of all files together. Raises `UserError` if there is none."""
        for file in track(self._files, "opening"):
            self._specs[file] = self._spec(file)
        if any(self._specs.values()):
            _require_alike(self._specs)
            return self._first
        return self._described_bare() if self._given is None else Description(self._given)

    def episodes(self) -> list[EpisodeReader]:
        """Return the episodes of all files, in the order of the files."""
        spec, key = self.described.spec, facts_key(self.described)
        found: list[EpisodeReader] = []
        for file in track(self._files, "reading"):
            record = self._records.get(file)
            if file in self._read:
                found += self._read[file]
            elif record is not None and record.key == key:
                found += episodes_of(record.facts, file, spec)
            else:
                with open_file(file) as handle:
                    self._read[file] = self._episodes(handle, file, self.described)
                found += self._read[file]
        if self._index is None or len(found) < INDEX_FROM:
            return found
        self._keep(key)
        store = IndexedVectors(self._index)
        return [replace(episode, kept=store) for episode in found]

    def _spec(self, file: Path) -> PolicySpec | None:
        """Return the spec that a file carries. If it is that of the first file, read its episodes too."""
        if (record := self._records.get(file)) is not None:
            return spec_of_text(record.spec) if record.spec else None
        with open_file(file) as handle:
            spec = _stored_spec(handle, file, self._choices)
            if spec is not None and spec == self._specs.get(self._files[0]):
                self._read[file] = self._episodes(handle, file, self._first)
        return spec

    @cached_property
    def _first(self) -> Description:
        """The description of the first file, which carries a spec."""
        first = self._files[0]
        spec = self._specs[first]
        assert spec is not None, "files with and without a spec are refused"
        return describe_stored(
            spec, next(iter(_demos([first], self._choices)), None), self._choices
        )

    def _survey(self) -> Description:
        return describe_bare(_demos(self._files, self._choices), self._choices, self._like)

    def _described_bare(self) -> Description:
        """Return the description of files that carry no spec, for which all of them are looked through."""
        if self._index is None or set(self._stamps) != set(self._files):
            return self._survey()
        try:
            key = description_key(self._stamps, self._choices, self._like)
        except OSError:
            return self._survey()  # says what is wrong with the spec file
        if (text := self._index.description(key)) is not None:
            return description_of(text)
        described = self._survey()
        if len(self._files) >= INDEX_FROM or self._num_demos() >= INDEX_FROM:
            self._index.store_description(key, description_text(described))
        return described

    def _num_demos(self) -> int:
        return len(_demos(self._files, self._choices))

    def _episodes(self, handle: Any, file: Path, described: Description) -> list[EpisodeReader]:
        return read_episodes(
            handle,
            file,
            described.spec,
            cameras=described.cameras,
            allow_external=self._choices.allow_external,
        )

    def _keep(self, key: str) -> None:
        """Put what was read into the index."""
        assert self._index is not None
        self._index.touch(self._records)
        records = {}
        for file, episodes in self._read.items():
            if file in self._stamps:
                spec = self._specs[file]
                text = "" if spec is None else spec.to_json()
                records[file] = FileRecord(self._stamps[file], text, key, facts_text(episodes))
        if records:
            self._index.store(records)


def _stamps(files: Iterable[Path]) -> dict[Path, str]:
    """Return the stamps of the files, taken before they are read; opening says which are gone."""
    return {file: stamp_of(file) for file in files if os.path.exists(file)}


def stored_spec(path: Path, choices: Choices) -> PolicySpec | None:
    """Return the spec that a file carries, or None.

    Raises `UserError` if the file cannot be read, or is in another layout than robomimic's.
    """
    with open_file(path) as file:
        return _stored_spec(file, path, choices)


def _stored_spec(file: Any, path: Path, choices: Choices) -> PolicySpec | None:
    layout = layout_of_file(file, allow_external=choices.allow_external)
    if layout is not None and not layout.is_read:
        raise UserError(layout.refusal(path))
    if data_group(file, allow_external=choices.allow_external) is None:
        raise damaged(
            path,
            "it has no group 'data', so it is no robomimic file",
            "the layouts that are read or converted are in datasets/README.md",
        )
    return read_stored_spec(file, allow_external=choices.allow_external)


def _require_alike(stored: Mapping[Path, PolicySpec | None]) -> None:
    """Raise `UserError` if specs that files carry differ, or only some carry one."""
    carrying = {path: spec for path, spec in stored.items() if spec is not None}
    bare = [path for path, spec in stored.items() if spec is None]
    first, spec = next(iter(carrying.items()))
    if bare:
        raise UserError(
            f"{bare[0]} carries no spec, but {first} does; keep the two kinds in different folders"
        )
    for path, other in carrying.items():
        if other != spec:
            spec.require_compatible(other, ours=str(first), theirs=str(path))


def _demos(paths: Sequence[Path], choices: Choices) -> list[tuple[Path, str]]:
    demos = []
    for path in paths:
        with open_file(path) as file:
            names = demo_names(file, allow_external=choices.allow_external)
            demos += [(path, name) for name in names]
    return demos
