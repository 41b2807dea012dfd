"""Access to one HDF5 file of episodes: opening it, its spec, its masks, and the names of its demos.

A demo is one episode in the file, the group `data/demo_<i>`, as robomimic calls it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import h5py
import numpy as np

from ttm.datasets.hdf5 import TrustedFile, find_member, no_file, one_line, why_unreadable
from ttm.datasets.layout import natural_key
from ttm.policy.errors import UserError, require_line
from ttm.policy.spec import PolicySpec

READ_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, SyntaxError)
"""What h5py, NumPy and Pillow raise for damaged files."""
HELD_OUT = ("valid", "val", "validation", "test")
"""Masks of episodes that are not trained on where no `mask/train` says which are."""

MOST_DEMOS = 2**20  # names in a mask
MOST_OPEN = 64  # files kept open for reading, each of which takes up to 1.5 megabytes of memory
MOST_MEMBERS = 256  # datasets of each open file that are kept at hand
METADATA_BYTES = 2**20
"""HDF5's cache of metadata of each open file, which JPEGs would let grow to 32 MB without being faster."""


@contextmanager
def open_file(path: Path, *, allow_external: bool = False) -> Iterator[Any]:
    """Open `path` as an `h5py.File` for reading, as a `TrustedFile` if `allow_external`.

    Raises `UserError` if it cannot be opened, or if what is read in the `with` block is damaged.
    """
    with _opened(path, allow_external=allow_external) as file, _guarded(path):
        yield file


class OpenFiles:
    """Opens files for reading and keeps those open that were read last, for many reads in any order.

    Files that are open can be replaced by others, but not be written to. Several threads may share
    an object. A copy in another process opens its files again.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        """most: the number of files that are open at a time."""
        self._most = most
        self._files: OrderedDict[Path, Any] = OrderedDict()
        self._members: dict[Path, dict[str, Any]] = {}
        self._lock = RLock()
        self._process = os.getpid()

    @contextmanager
    def open(self, path: Path, member: str) -> Iterator[Any]:
        """Give the group or dataset `member` of a file, as `open_file` does. Other threads wait meanwhile."""
        if self._process != os.getpid():  # after a fork, the lock may belong to nobody
            self.__init__(self._most)  # type: ignore[misc]
        with self._lock, _guarded(path):
            file = self._file(path)
            known = self._members[path]
            if member not in known:
                if len(known) >= MOST_MEMBERS:
                    known.clear()
                known[member] = file[member]
            yield known[member]

    def close(self) -> None:
        """Close all files; what is read afterwards is opened again."""
        with self._lock:
            while self._files:
                self._close_oldest()

    def _file(self, path: Path) -> Any:
        if path in self._files:
            self._files.move_to_end(path)
        else:
            while len(self._files) >= self._most:
                self._close_oldest()
            # Without a cache of chunks, of which every dataset would have its own.
            file = _opened(path, rdcc_nbytes=0)
            config = file.id.get_mdc_config()
            config.set_initial_size = True
            config.initial_size = config.min_size = config.max_size = METADATA_BYTES
            file.id.set_mdc_config(config)
            self._files[path], self._members[path] = file, {}
        return self._files[path]

    def _close_oldest(self) -> None:
        path, file = self._files.popitem(last=False)
        del self._members[path]
        file.close()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return OpenFiles, (self._most,)


def _opened(path: Path, *, allow_external: bool = False, **options: int) -> Any:
    if what := no_file(path):
        raise UserError(f"{path} is {what}")
    try:
        return (TrustedFile if allow_external else h5py.File)(path, "r", **options)
    except READ_ERRORS as error:
        raise damaged(path, *why_unreadable(path, error)) from error


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Turn what is raised by reading the open file `path` into errors of users that name it."""
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error
    except READ_ERRORS as error:
        raise damaged(path, f"HDF5 cannot read it ({one_line(error)})") from error


def damaged(path: Path, what: str, remedy: str = "") -> UserError:
    """Return the error for a file that is not a complete data set."""
    remedy = remedy or f"`ttm data check {path}` names every fault and its remedy"
    return UserError(f"{path}: {what}; {remedy}")


def data_group(file: Any) -> Any | None:
    """Return the group `data` of an open file, or None if there is none."""
    group = find_member(file, "data")
    return group if isinstance(group, h5py.Group) else None


def read_stored_spec(file: Any) -> PolicySpec | None:
    """Return the spec that an open file carries, or None if another program wrote the file."""
    group = data_group(file)
    text = "" if group is None else decoded(group.attrs.get("ttm_spec"))
    return spec_of_text(text) if text else None


@lru_cache(maxsize=64)
def spec_of_text(text: str) -> PolicySpec:
    """Return the spec of a JSON text; the files of a data set share one."""
    return PolicySpec.from_json(text)


def read_masks(file: Any) -> dict[str, list[str]]:
    """Return the masks of an open file: filter key -> names of demos. Raises `UserError` for others."""
    group = find_member(file, "mask")
    if group is None:
        return {}
    if not isinstance(group, h5py.Group):
        raise UserError("mask is not a group of lists of demos; rename it")
    require_printable("the mask", group)
    return {key: _mask(key, find_member(group, key)) for key in group}


def _mask(key: str, stored: Any) -> list[str]:
    if not isinstance(stored, h5py.Dataset) or stored.dtype.kind not in "SO":
        raise UserError(f"mask/{key} does not hold names of demos; write them as texts")
    if stored.size > MOST_DEMOS:
        raise UserError(f"mask/{key} has {stored.size} names; name each demo once")
    return [decoded(name) for name in np.ravel(stored[()])]


def mask_problems(
    masks: Mapping[str, Collection[str]], names: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Find masks that split the demos in no way that can be followed: what is wrong, and its remedy.

    masks: as `read_masks` gives them. names: those of all demos of the file.
    """
    held_out = set().union(*(masks.get(key, ()) for key in HELD_OUT))
    for key in ("train", *HELD_OUT):
        members = masks.get(key)
        if members is None or not set(members).isdisjoint(names):
            continue
        if members:
            yield (
                f"mask/{key} names none of the file's demos",
                "write the demos' names as they are in data, such as demo_0",
            )
        elif key == "train" and not held_out.issuperset(names):
            yield (
                "mask/train is empty, and some demos are not held out either",
                "name the demos to train on in it, or take it out of the file",
            )


def demo_names(file: Any) -> list[str]:
    """Return the names of the demos, demo_2 before demo_10. Raises `UserError` for one that is no text."""
    names = sorted(data_group(file) or (), key=natural_key)
    require_printable("the demo", names)
    return names


def require_printable(what: str, names: Iterable[str]) -> None:
    """Raise `UserError` for a name that a terminal would take for something else, or that is no text."""
    for name in names:
        if name != one_line(name):
            raise UserError(
                f"{what} '{one_line(name)}' has a name that cannot be printed; rename it"
            )


def demo_group(file: Any, name: str) -> Any:
    """Return the group of a demo. Raises `UserError` if it is no group."""
    data = data_group(file)
    demo = None if data is None else find_member(data, name)
    if not isinstance(demo, h5py.Group):
        raise UserError(f"data/{name} is not a group with one demonstration; take it out of data")
    return demo


def instruction_of(demo: Any) -> str:
    """Return the instruction of an open group; an empty text if there is none, or a blank one.

    Raises `UserError` if the attribute `language_instruction` is not one text.
    """
    value = demo.attrs.get("language_instruction")
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if value is None or isinstance(value, h5py.Empty):
        return ""
    if not isinstance(value, str | bytes):
        raise UserError(
            f"{demo.name.strip('/')}/language_instruction".strip("/")
            + f" is {one_line(decoded(value))}, and not one text; write that attribute as one text"
        )
    return plain_text(decoded(value), "language_instruction")


def plain_text(text: str, what: str) -> str:
    """Return an instruction or a task as one line; a blank one is empty.

    What is not printed, such as ESC, becomes U+FFFD. Raises `UserError` for a text that is too long.
    what: its name in the error.
    """
    line = require_line(text, what)
    line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if line.strip() else ""


def decoded(value: Any) -> str:
    """Return a text attribute (bytes, str or None) as str; what is not UTF-8 becomes U+FFFD."""
    if value is None:
        return ""
    data = value
    if not isinstance(value, bytes):
        try:
            data = str(value).encode("utf-8", "surrogateescape")  # as HDF5 had them
        except UnicodeEncodeError:  # half a pair of UTF-16, as JSON may have it
            data = str(value).encode("utf-8", "replace")
    return bytes(data).decode("utf-8", "replace")
