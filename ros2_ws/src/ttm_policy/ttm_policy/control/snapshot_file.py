"""Keeps a runner's whole state in a file, from which a respawned process continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.files import write_atomically
from ttm.policy.run.snapshot import read_snapshot, snapshot_to_bytes


def save_snapshot(path: str | Path, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write all arrays. A kill during writing leaves the last whole snapshot in place."""
    try:
        write_atomically(Path(path), snapshot_to_bytes(snapshot))
    except OSError as error:
        raise UserError(
            f"cannot write the snapshot {path} ({error.strerror}); "
            "set snapshot_path to a path that can be written"
        ) from error


def load_snapshot(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `save_snapshot` wrote. It never unpickles."""
    try:
        return read_snapshot(Path(path))
    except FileNotFoundError as error:
        raise UserError(
            f"no snapshot at {path}; call snapshot_memory first, or set snapshot_path"
        ) from error
    except (OSError, UserError) as error:
        raise UserError(
            f"{path} is not a memory snapshot ({error}); take a new one with snapshot_memory"
        ) from error
