"""Tells recordings in progress from those that a killed program has left.

Whoever writes in a folder holds a shared lock on the folder itself, from before it makes its partial file
until this has its final name. The kernel releases the lock with the process, however that ends. Whoever
gets the exclusive lock therefore knows that all partial files are left over, and keeps writers waiting
while it removes them. No process ids are compared, which are given anew, and no lock files stay behind.

On network drives (NFS, SMB), other computers do not see the lock on a folder, but that which HDF5 holds on a
file while it writes it, if the drive passes on locks. Whoever removes files therefore tries that one, too. A
file system without locks refuses them: then nobody knows, and all files stay.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ttm.datasets.layout import RECORDED
from ttm.policy.files import PARTIAL_SUFFIX


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Let nobody take the partial files in a folder, which must exist, for left over ones.

    Raises `OSError` if the folder cannot be opened.
    """
    with _opened(folder) as descriptor:
        with suppress(OSError):  # without locks, nobody gets the exclusive one either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def is_written_in(folder: Path) -> bool:
    """Return whether a living process writes in the folder, or nobody can tell."""
    try:
        with _alone(folder) as alone:
            return not alone
    except OSError:
        return True


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete the recordings that killed recorders have left in a folder, and return their paths.

    Nothing is deleted while anybody writes in the folder, or if it cannot be read or changed. Other
    partial files than those of `next_episode_path` stay.
    """
    removed: list[Path] = []
    with suppress(OSError), _alone(folder) as alone:
        for path in _partial_files(folder) if alone else ():
            if RECORDED.fullmatch(path.name):
                path.unlink()
                removed.append(path)
    return removed


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield whether nobody else writes in the folder, and let nobody begin meanwhile."""
    with _opened(folder) as descriptor:
        yield _gets_lock(descriptor) and all(map(_is_unused, _partial_files(folder)))


def _partial_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f".*{PARTIAL_SUFFIX}") if path.is_file())


def _is_unused(path: Path) -> bool:
    """Return whether no HDF5 writes a file, also on another computer."""
    with path.open("rb+") as file:  # NFS gives the exclusive lock for writing only
        return _gets_lock(file.fileno())


def _gets_lock(descriptor: int) -> bool:
    """Take the exclusive lock, which ends when the file is closed; return whether it was to be had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
