"""Writes a file of demos anew, with one of them cut in time, changed or left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ttm.datasets.access.leftovers import writing_in
from ttm.datasets.access.links import find_member
from ttm.datasets.access.storage import outside_fault
from ttm.datasets.episode_file import READ_ERRORS, damaged, demo_group, open_file, read_masks
from ttm.policy.errors import UserError
from ttm.policy.files import partial_path, publish_partial

EMBEDDING = "language_embedding"
"""The one dataset of a demo whose first dimension is never time."""

BLOCK_BYTES = 2**25
"""About as much of a dataset is in memory at a time."""

MARGIN_BYTES = 2**22
"""So much more space than a file takes must be free to write it anew."""

CopyDemo = Callable[[Any, Any, str], None]
"""Called with the demo, the target's group `data` and the demo's name; makes the demo there."""


def cut_demo(start: int, stop: int) -> CopyDemo:
    """Return what copies the ticks `start` to `stop` - 1 of a demo.

    All datasets of the demo that have a row for each tick are cut, also those that this project does
    not read. They keep their types, compression and attributes.
    """

    def copy(demo: Any, data: Any, name: str) -> None:
        target = data.create_group(name)
        _cut_group(demo, target, slice(start, stop), len(demo["actions"]))
        target.attrs["num_samples"] = stop - start

    return copy


def leave_out(demo: Any, data: Any, name: str) -> None:
    """Copy nothing of the demo."""


def write_anew(path: Path, name: str, copy_demo: CopyDemo) -> None:
    """Write the file `path` anew: the demo `name` as `copy_demo` makes it, and all else as it is.

    A kill at any moment leaves the old file or the new one. Raises `UserError` if the file is damaged.
    """
    with _replacing(path) as partial, open_file(path) as source, h5py.File(partial, "w") as target:
        target.attrs.update(source.attrs)
        for member in source:
            if member not in ("data", "mask"):
                source.copy(member, target)
        _copy_data(source, target, name, copy_demo)
        _copy_masks(source, target, set(target["data"]))


@contextmanager
def changed_in_place(path: Path) -> Iterator[Any]:
    """Yield a copy of the file `path`, opened for writing, that takes its place in the end."""
    with _replacing(path) as partial:
        with path.open("rb") as source, partial.open("wb") as target:
            while block := source.read(BLOCK_BYTES):
                target.write(block)
        try:
            with h5py.File(partial, "r+") as file:
                yield file
        except READ_ERRORS as error:
            if isinstance(error, UserError):
                raise
            raise damaged(path, f"it cannot be changed ({error})") from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` in the end. An exception leaves `path` as it is."""
    partial = partial_path(path)
    free, needed = shutil.disk_usage(path.parent).free, path.stat().st_size + MARGIN_BYTES
    if free < needed:  # HDF5 crashes if the disk becomes full while it copies
        raise UserError(
            f"{path}: writing it anew takes {needed / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are "
            "free; make space"
        )
    with writing_in(path.parent):
        try:
            yield partial
            publish_partial(path)
        finally:
            partial.unlink(missing_ok=True)


def _copy_data(source: Any, target: Any, name: str, copy_demo: CopyDemo) -> None:
    data = target.create_group("data")
    data.attrs.update(source["data"].attrs)
    for each in source["data"]:
        demo = demo_group(source, each)
        if each == name:
            copy_demo(demo, data, each)
        else:
            source.copy(demo, data, each)
    data.attrs["total"] = sum(map(_length, data.values()))


def _length(demo: Any) -> int:
    """Return the number of ticks of a demo; 0 for one without actions, which cannot be opened."""
    actions = demo.get("actions")
    return len(actions) if getattr(actions, "shape", None) else 0


def _copy_masks(source: Any, target: Any, names: set[str]) -> None:
    for key, members in read_masks(source).items():
        kept = [member.encode() for member in members if member in names]
        if kept:
            target.create_dataset(f"mask/{key}", data=np.array(kept))


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
    most = (None, *shape[1:]) if source.chunks else shape
    created = h5py.h5d.create(
        target.id,
        name.encode("utf-8", "surrogateescape"),
        source.id.get_type(),
        h5py.h5s.create_simple(shape, tuple(h5py.h5s.UNLIMITED if n is None else n for n in most)),
        source.id.get_create_plist(),
    )
    cut = h5py.Dataset(created)
    cut.attrs.update(source.attrs)
    rows = max(BLOCK_BYTES * max(source.shape[0], 1) // max(source.nbytes, 1), 1)
    for first in range(ticks.start, ticks.stop, rows):
        last = min(first + rows, ticks.stop)
        cut[first - ticks.start : last - ticks.start] = source[first:last]
