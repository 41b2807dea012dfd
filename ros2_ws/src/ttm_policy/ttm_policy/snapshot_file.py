"""A runner's whole state in an .npz file, so that a respawned process goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.run.snapshot import snapshot_from_bytes, snapshot_to_bytes


def save_snapshot(path: str | Path, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write all arrays, to a temporary name first: a kill leaves the last whole snapshot in place."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(snapshot_to_bytes(snapshot))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write the snapshot {path} ({error.strerror}); set snapshot_path to a writable place"
        ) from error


def load_snapshot(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `save_snapshot`. Never unpickles."""
    try:
        return snapshot_from_bytes(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"no snapshot at {path}; call snapshot_memory first, or set snapshot_path"
        ) from error
    except (OSError, UserError) as error:
        raise UserError(
            f"{path} is not a memory snapshot ({error}); take a new one with snapshot_memory"
        ) from error
