"""Writes of HDF5 files that may fail, such as on a full disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError

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
        guard.failed = True
        if isinstance(error, RuntimeError) and "write" in str(error):  # as HDF5 tells it at times
            raise OSError(one_line(error)) from error
        raise
    finally:
        guard.close(file)
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
        """Whether a write has failed. The file can then only be closed and deleted."""
        self._path = path

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise `UserError` if what is told to HDF5 in the `with` block cannot be written."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.failed = True
            why = re.search("error message = '(.*?)'", str(error))
            raise UserError(
                f"cannot write {self._path} ({why[1] if why else one_line(error)}); the episode is lost: "
                "make space, or record to another folder"
            ) from error

    def close(self, file: Any) -> None:
        """Close the open `h5py.File`.

        After a failed write, HDF5 writes to nowhere: closing would otherwise fail as the write did, and
        HDF5 would crash the process at its exit.
        """
        if self.failed:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.dup2(descriptor, file.id.get_vfd_handle())
            os.close(descriptor)
        file.close()
