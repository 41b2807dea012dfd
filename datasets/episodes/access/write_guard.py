"""Writes of HDF5 files that may fail, such as on a full disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any, NoReturn

import h5py

from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError

HELD_BACK = 2**22
"""Bytes of an episode that HDF5 has not written yet, at most."""
ROOM = 2**18
"""Bytes that HDF5 may take beside the values that are written at a time."""


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """Open the new file `path` as an `h5py.File` for writing.

    After any error the file is closed without further writes, and is of no use. Raises `OSError` if a
    write fails, also the last one.
    """
    guard = WriteGuard(path)
    file = h5py.File(path, "w")
    try:
        yield file
        file.flush()
        end = file.id.get_filesize()
    except BaseException as error:
        guard.broken = True
        guard.discard(file)
        if isinstance(error, RuntimeError) and "write" in str(error):  # as HDF5 tells it at times
            raise OSError(one_line(error)) from error
        raise
    file.close()
    os.truncate(path, end)  # of what was reserved, the last bit may be left


def reserve(file: Any, num_bytes: int) -> None:
    """Let a file of `new_file` have so many more bytes of the disk, and some for HDF5 beside them.

    HDF5 crashes the process at times if the disk becomes full while it writes. Raises `OSError` if
    there is no space. What is not needed is given back when the file is closed.
    """
    file.flush()
    os.posix_fallocate(file.id.get_vfd_handle(), file.id.get_filesize(), num_bytes + ROOM)


class WriteGuard:
    """Turns failed writes to the file `path` into errors of one line, and lets the file be closed then."""

    def __init__(self, path: Path) -> None:
        self.failed = False
        """Whether no more can be written. The file can then only be discarded."""
        self.broken = False
        """Whether HDF5 has failed to write, and would crash when it goes on."""
        self._path = path

    def require_space(self, num_bytes: int) -> None:
        """Raise `UserError` if the disk has no space for so many bytes and what HDF5 holds back.

        HDF5 crashes the process at times if the disk becomes full while it writes.
        """
        if shutil.disk_usage(self._path.parent).free < num_bytes + HELD_BACK:
            self._fail(os.strerror(ENOSPC))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise `UserError` if what is told to HDF5 in the `with` block cannot be written."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.broken = True
            why = re.search("error message = '(.*?)'", str(error))
            self._fail(why[1] if why else one_line(error), error)

    def _fail(self, why: str, error: Exception | None = None) -> NoReturn:
        self.failed = True
        raise UserError(
            f"cannot write {self._path} ({why}); the episode is lost: make space, or record to another "
            "folder"
        ) from error

    def discard(self, file: Any) -> None:
        """Close the open `h5py.File`, which is to be deleted.

        After a failed write, HDF5 writes to nowhere: closing would otherwise fail as the write did, and
        HDF5 would crash the process at its exit.
        """
        if not self.broken:
            file.close()
            return
        descriptor = os.open(os.devnull, os.O_RDWR)
        os.dup2(descriptor, file.id.get_vfd_handle())
        os.close(descriptor)
        with suppress(OSError, RuntimeError):  # a flush that failed may keep it from closing
            file.close()
