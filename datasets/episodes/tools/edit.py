"""Trimming, labelling and deleting recorded episodes, each of which `undo_edit` takes back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import numpy as np
from filelock import FileLock
from tyro.conf import Positional, arg

from ttm.datasets.episode_file import (
    READ_ERRORS,
    damaged,
    demo_group,
    demo_names,
    open_file,
    read_masks,
)
from ttm.datasets.files import find_files
from ttm.datasets.hdf5 import find_member, one_line, outside_fault, writing_in
from ttm.datasets.layout import SUFFIXES
from ttm.datasets.reader import EpisodeReader
from ttm.policy.errors import UserError, options, require_at_least
from ttm.policy.files import flush_to_disk, partial_path, replacing, write_json

EMBEDDING = "language_embedding"  # the one dataset of a demo whose first dimension is never time
BLOCK_BYTES = 2**25  # about as much of a dataset is in memory at a time
MARGIN_BYTES = 2**22  # so much more space than a file takes must be free to write it again


@dataclass(frozen=True)
class DataTrimCommand:
    """Cut off the start or the end of a recorded episode.

    The ticks from --start up to, but without, --stop are kept, with all that the file has for each
    tick. `ttm data undo` takes it back.

    For example:
      ttm data play my_episodes/episode_00003.hdf5 --out episode.mp4     # shows the ticks' numbers
      ttm data trim my_episodes/episode_00003.hdf5 --start 4 --stop 31
    """

    episode: Annotated[Positional[Path], arg(metavar="EPISODE")]
    """An HDF5 file."""
    start: int = 0
    """The first tick that is kept, counted from 0."""
    stop: int | None = None
    """The first tick after those that are kept. None keeps all to the end."""
    demo: str | None = None
    """Which episode of the file, such as demo_3, if it has several."""

    def run(self) -> int:
        """Trim and print how many ticks are left; return the exit code."""
        require_at_least(0, options(self, "start", "stop"))
        left = trim_episode(self.episode, self.start, self.stop, self.demo)
        _print_done(f"{self.episode}: {left} ticks are left", self.episode)
        return 0


Success = Literal["true", "false", "unknown"]


@dataclass(frozen=True)
class Labels:
    """What `label_episodes` writes. None leaves what is there."""

    instruction: str | None = None
    """What the robot was told to do."""

    success: Success | None = None
    """Whether the robot did it; unknown takes the fact out of the file."""

    task: str | None = None
    """A name for statistics, and for `ttm data filter` and `split`."""


@dataclass(frozen=True)
class DataLabelCommand:
    """Write instruction, success or task into recorded episodes.

    What is not given stays as it is. With a new instruction, the sentence embedding of the old one is
    dropped. `ttm data undo` takes it back.

    For example:
      ttm data label my_episodes --instruction "open the top drawer"
      ttm data label my_episodes/episode_00003.hdf5 --success false
    """

    path: Annotated[Positional[str], arg(metavar="EPISODES")]
    """An HDF5 file, a folder of them, or a glob in quotes."""
    labels: Annotated[Labels, arg(name="")] = field(default_factory=Labels)
    demo: str | None = None
    """Only this episode, such as demo_3, of one file that has several."""

    def run(self) -> int:
        """Label and print how many episodes there are; return the exit code."""
        if self.demo is not None and not Path(self.path).expanduser().is_file():
            raise UserError(f"--demo {self.demo} is of one file, and {self.path} is none; name it")
        count, folder = label_episodes(self.path, self.labels, self.demo)
        _print_done(f"{self.path}: labelled {count} episodes", folder)
        return 0


@dataclass(frozen=True)
class DataDeleteCommand:
    """Delete recorded episodes. Damaged files can be deleted too.

    They are kept in the hidden folder .ttm_undo beside them, from which `ttm data undo` brings them
    back, until `ttm data undo FOLDER --forget` frees their space.

    For example:
      ttm data delete my_episodes/episode_00003.hdf5 my_episodes/episode_00007.hdf5
      ttm data delete week.hdf5 --demo demo_12
    """

    episodes: Annotated[Positional[tuple[Path, ...]], arg(metavar="EPISODE …")]
    """HDF5 files."""
    demo: str | None = None
    """Delete only this episode, such as demo_3, of one file that has several."""

    def run(self) -> int:
        """Delete and print how many episodes went; return the exit code."""
        if not self.episodes:
            raise UserError("no file is named; give the HDF5 files to delete")
        count, folder = delete_episodes(self.episodes, self.demo)
        _print_done(f"deleted {count} episodes", folder)
        return 0


@dataclass(frozen=True)
class DataUndoCommand:
    """Take back the newest of the edits by trim, label and delete, or by the recorder's undo.

    Run it again for the one before. A file that was changed or recorded again since then is not
    overwritten.

    For example:
      ttm data undo my_episodes
      ttm data undo my_episodes --forget       # nothing can be undone afterwards
    """

    place: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """The folder that was edited, or the file."""
    forget: bool = False
    """Do not undo, but delete all earlier versions, which frees their space."""

    def run(self) -> int:
        """Undo the newest edit, or forget all, and print what was done; return the exit code."""
        history = history_of(self.place)
        if self.forget:
            print(f"{self.place}: the earlier versions of {history.forget()} edits are deleted")
            return 0
        edit = history.undo()
        for file in edit.files:
            print(f"{file}: undid {edit.what}")
        print(f"{history.count()} more edits can be undone")
        return 0


def _print_done(what: str, place: Path) -> None:
    print(f'{what}\nto undo: ttm data undo "{place}"')


def trim_episode(path: Path, start: int, stop: int | None, demo: str | None = None) -> int:
    """Keep the ticks `start` to `stop` - 1 (None: to the end) of one episode; return how many there are.

    Raises `UserError` if nothing would be left, or nothing would be cut off.
    """
    episode = EpisodeReader.open(path, demo)
    length = episode.num_samples
    end = length if stop is None else stop
    if not 0 <= start < end <= length:
        raise UserError(
            f"{path}: {episode.name} has ticks 0 to {length - 1}; give --start and --stop among them"
        )
    if end - start == length:
        raise UserError(f"{path}: these are all {length} ticks; give --start or --stop")
    what = f"trim {episode.name} to ticks {start} to {end - 1}"
    ticks = slice(start, end)
    history_of(path).change(what, [path], lambda file: write_again(file, episode.name, ticks))
    return end - start


def label_episodes(path: str | Path, labels: Labels, demo: str | None = None) -> tuple[int, Path]:
    """Write labels into all episodes of a file, folder or glob; return their number, and what to undo.

    demo: only this one, of one file. Episodes that cannot be opened are labelled too, since an instruction
    that is no text is such a reason. Raises `UserError` if a file is damaged, and then changes none.
    """
    if labels == Labels():
        raise UserError("nothing to write; give --instruction, --success or --task")
    if labels.instruction is not None and not labels.instruction.strip():
        raise UserError("--instruction is empty; give the words that the robot followed")
    place = Path(path).expanduser()
    files = find_files(path) if demo is None else [place]
    names = {file: _names(file, demo) for file in files}
    count = sum(map(len, names.values()))
    if not count:
        raise UserError(f"{path} has no episode (data/demo_0, …); check the path")
    folder = place if place.is_dir() else _common_folder(files)

    def label(file: Path) -> None:
        with changed_in_place(file) as opened:
            for name in names[file]:
                _write_labels(demo_group(opened, name), labels)

    history_of(folder).change("label", files, label)
    return count, folder


def delete_episodes(paths: Sequence[Path], demo: str | None = None) -> tuple[int, Path]:
    """Delete episode files, or the one demo of a file of several; return the number, and what to undo.

    Damaged files can be deleted too, and count as one. Raises `UserError` for what is no episode file.
    """
    paths = list(dict.fromkeys(paths))
    for path in paths:
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise UserError(f"{path} is no episode file; name the HDF5 files to delete")
    folder = _common_folder(paths)
    if demo is not None:
        if len(paths) != 1:
            raise UserError(f"--demo {demo} is of one file, but there are {len(paths)}; name one")
        _names(paths[0], demo)
    counts = []
    for path in paths:
        counts.append(1)
        with suppress(UserError):
            counts[-1] = max(len(_names(path)), 1)
    if demo is None or counts == [1]:
        history_of(folder).change("delete", paths, Path.unlink)
        return sum(counts), folder
    history_of(folder).change(f"delete {demo}", paths, lambda file: write_again(file, demo, None))
    return 1, folder


def undo_edit(place: Path) -> Edit:
    """Take back the newest edit of the episodes of a file's folder, or of a folder; see `History.undo`."""
    return history_of(place).undo()


def _write_labels(demo: h5py.Group, labels: Labels) -> None:
    if labels.instruction is not None:
        stored = demo.attrs.get("language_instruction")
        if not (isinstance(stored, str) and stored == labels.instruction):
            demo.attrs["language_instruction"] = labels.instruction
            if EMBEDDING in demo:
                del demo[EMBEDDING]
    if labels.task is not None:
        demo.attrs["task"] = labels.task
    if labels.success == "unknown":
        demo.attrs.pop("success", None)
    elif labels.success is not None:
        demo.attrs["success"] = labels.success == "true"


def _names(path: Path, demo: str | None = None) -> list[str]:
    """Return the names of the demos of a file, or `demo` alone. They need not be such as can be opened."""
    with open_file(path) as file:
        names = demo_names(file)
    if demo is not None and demo not in names:
        raise UserError(f"{path} has no episode '{demo}'; it has: {', '.join(names) or 'none'}")
    return names if demo is None else [demo]


def _common_folder(files: Sequence[Path]) -> Path:
    """Return the deepest folder that all files are in. The history of a change lies there."""
    folders = [file.parent.resolve() for file in files]
    shared = Path(os.path.commonpath(folders))
    return files[0].parent if shared == folders[0] else shared


def write_again(path: Path, name: str, ticks: slice | None) -> None:
    """Write the file `path` again: of the demo `name` some ticks, or nothing, and all else as it is.

    All datasets of the demo that have a row for each tick are cut, also those that this project does
    not read. They keep their types, compression and attributes. Raises `UserError` for a damaged file.
    """
    with _replacing(path) as partial, open_file(path) as source, h5py.File(partial, "w") as target:
        target.attrs.update(source.attrs)
        for member in source:
            if member not in ("data", "mask"):
                source.copy(member, target)
        data = target.create_group("data")
        data.attrs.update(source["data"].attrs)
        for each in source["data"]:
            demo = demo_group(source, each)
            if each != name:
                source.copy(demo, data, each)
            elif ticks is not None:
                cut = data.create_group(each)
                _cut_group(demo, cut, ticks, len(demo["actions"]))
                cut.attrs["num_samples"] = ticks.stop - ticks.start
        actions = [demo.get("actions") for demo in data.values()]  # some cannot be opened
        data.attrs["total"] = sum(len(each) for each in actions if getattr(each, "shape", None))
        for key, members in read_masks(source).items():
            kept = [member.encode() for member in members if member in data]
            if kept:
                target.create_dataset(f"mask/{key}", data=np.array(kept))


@contextmanager
def changed_in_place(path: Path) -> Iterator[Any]:
    """Yield a copy of the file `path`, opened for writing, that takes its place in the end."""
    with _replacing(path) as partial:
        shutil.copyfile(path, partial)
        try:
            with h5py.File(partial, "r+") as file:
                yield file
        except UserError:
            raise
        except READ_ERRORS as error:
            raise damaged(path, f"it cannot be changed ({error})") from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` in the end. An exception leaves `path` as it is."""
    free, needed = shutil.disk_usage(path.parent).free, path.stat().st_size + MARGIN_BYTES
    if free < needed:  # HDF5 crashes if the disk becomes full while it copies
        raise UserError(
            f"{path}: {needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} MiB are free; make space"
        )
    with writing_in(path.parent), replacing(path) as partial:
        yield partial


def _cut_group(source: Any, target: Any, ticks: slice, length: int) -> None:
    target.attrs.update(source.attrs)
    for name in source:
        member = find_member(source, name)
        if isinstance(member, h5py.Group):
            _cut_group(member, target.create_group(name), ticks, length)
        elif name != EMBEDDING and (getattr(member, "shape", None) or ())[:1] == (length,):
            _cut_dataset(member, target, name, ticks)
        elif member is not None:  # a soft link that leads nowhere is left out
            source.file.copy(member, target, name)


def _cut_dataset(source: Any, target: Any, name: str, ticks: slice) -> None:
    if fault := outside_fault(source):
        raise UserError(f"{source.name}: {fault[0]}; {fault[1]}")
    shape = (ticks.stop - ticks.start, *source.shape[1:])
    most = (h5py.h5s.UNLIMITED if source.chunks else shape[0], *shape[1:])
    created = h5py.h5d.create(
        target.id,
        name.encode("utf-8", "surrogateescape"),
        source.id.get_type(),
        h5py.h5s.create_simple(shape, most),
        source.id.get_create_plist(),
    )
    cut = h5py.Dataset(created)
    cut.attrs.update(source.attrs)
    rows = max(BLOCK_BYTES * max(source.shape[0], 1) // max(source.nbytes, 1), 1)
    for first in range(ticks.start, ticks.stop, rows):
        last = min(first + rows, ticks.stop)
        cut[first - ticks.start : last - ticks.start] = source[first:last]


FOLDER = ".ttm_undo"

State = list[int] | None
"""Size and time of change (ns) of a file, by which a later change is noticed; None without the file."""


@dataclass(frozen=True)
class Edit:
    """One change that can be undone: what it was, and the files that it changed."""

    what: str
    files: tuple[Path, ...]


class History:
    """Earlier versions of the episodes in `folder`, at any depth, kept so that each change can be undone.

    <folder>/.ttm_undo/000003/edit.json    what was done to which files, and what they were then
    <folder>/.ttm_undo/000003/0, 1, …      the files as they were before: hard links, if there are such
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = folder / FOLDER

    def change(self, what: str, files: Sequence[Path], change: Callable[[Path], None]) -> None:
        """Keep all files as they are, and then let `change` change each.

        If it raises, all files are put back. After a kill in between, `undo` puts them back.
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
                raise UserError(f"nothing to undo in {self.folder}; name what was edited")
            edited, files, after = self._read(entries[-1])
            for number, (file, state) in enumerate(zip(files, after, strict=True)):
                is_kept = (entries[-1] / str(number)).exists()  # or else an undo before put it back
                if is_kept and state not in ("unknown", _state(file)):
                    what = "was changed again" if state else "was recorded again"
                    raise UserError(f"{file} {what} since the edit; move it elsewhere first")
            self._restore(entries[-1])
        return Edit(edited, tuple(files))

    def count(self) -> int:
        """Return how many changes can be undone."""
        return len(self._entries())

    def forget(self) -> int:
        """Delete all earlier versions; return how many changes they were of."""
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
            with FileLock(self._store / "lock"):
                yield
        except OSError as error:
            raise UserError(
                f"cannot change {self.folder} ({one_line(error.strerror or error)}); may you write?"
            ) from error

    def _entries(self) -> list[Path]:
        found = self._store.iterdir() if self._store.is_dir() else ()
        return sorted(item for item in found if item.name.isdecimal())

    def _keep(self, what: str, files: Sequence[Path]) -> Path:
        """Return the new entry, which has its name when all files are kept."""
        number = max((int(entry.name) for entry in self._entries()), default=-1) + 1
        entry = self._store / f"{number:06d}"
        partial = partial_path(entry)
        shutil.rmtree(partial, ignore_errors=True)  # of a change that was killed
        partial.mkdir()
        for number, file in enumerate(files):
            kept = partial / str(number)
            try:
                os.link(os.path.realpath(file), kept)
            except OSError:  # the file system has no hard links
                shutil.copy2(file, kept)
                flush_to_disk(kept)
        self._note(partial, what, files, after=None)
        partial.rename(entry)
        flush_to_disk(self._store)
        return entry

    def _note(
        self, entry: Path, what: str, files: Sequence[Path], after: Sequence[State] | None
    ) -> None:
        folder = self.folder.resolve()
        names = [os.path.relpath(file.parent.resolve() / file.name, folder) for file in files]
        write_json(entry / "edit.json", {"what": what, "files": names, "after": after})

    def _read(self, entry: Path) -> tuple[str, list[Path], list[Any]]:
        """Return what was done, to which files, and their states since: "unknown" after a kill."""
        try:
            data = json.loads((entry / "edit.json").read_text(encoding="utf-8"))
            files = [self.folder / str(name) for name in data["files"]]
            after = data["after"] or ["unknown"] * len(files)
            folder = self.folder.resolve()
            inside = all(file.parent.resolve().is_relative_to(folder) for file in files)
            if not inside or len(after) != len(files):
                raise ValueError("its files lie elsewhere")
            return str(data["what"]), files, list(after)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{entry} does not say what was changed ({one_line(error)}); put its files back yourself"
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


def _state(file: Path) -> State:
    return [file.stat().st_size, file.stat().st_mtime_ns] if file.exists() else None
