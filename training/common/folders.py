"""Folders that commands write to."""

from __future__ import annotations

from pathlib import Path

from ttm.policy.errors import UserError


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make the folder that the user gave as `option`, with its parents; return it.

    Raises `UserError` if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {path} ({error}); give another folder with {option}"
        ) from error
    return path
