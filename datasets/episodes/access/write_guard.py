"""Writes of HDF5 files that may fail, such as on a full disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError


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
