"""Tells recordings in progress from those that a killed program has left.

Whoever writes in a folder holds a shared lock on the folder itself, from before it makes its partial file
until this has its final name. The kernel releases the lock with the process, however that ends. Whoever
gets the exclusive lock therefore knows that all partial files are left over, and keeps writers waiting
while it removes them. No process ids are compared, which are given anew, and no lock files stay behind.

A file system without such locks, as some of networks, refuses them: then nobody knows, and all files stay.
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
    with _alone(folder) as alone:
        return not alone


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete the recordings that killed recorders have left in a folder, and return their paths.

    Nothing is deleted while anybody writes in the folder, or if it cannot be read or changed. Other
    partial files than those of `next_episode_path` stay.
    """
    removed: list[Path] = []
    if not folder.is_dir():
        return removed
    with suppress(OSError), _alone(folder) as alone:
        for path in sorted(folder.glob(f".*{PARTIAL_SUFFIX}")) if alone else ():
            if RECORDED.fullmatch(path.name) and path.is_file():
                path.unlink()
                removed.append(path)
    return removed


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield whether nobody else writes in the folder, and let nobody begin meanwhile."""
    with _opened(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
