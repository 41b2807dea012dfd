"""Files: written atomically, and the header of a checkpoint, read without weights and PyTorch.

A kill at any moment leaves the old file or the new one, never a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ttm.policy.errors import UserError, first_line
from ttm.policy.spec import PolicySpec

PARTIAL_SUFFIX = ".partial"


def partial_path(path: Path) -> Path:
    """Return the temporary name beside `path` under which its new content is written."""
    return path.with_name(f".{path.name}{PARTIAL_SUFFIX}")


def publish_partial(path: Path) -> None:
    """Give the complete file at `partial_path(path)` its final name, `path`.

    The content is flushed to the disk before the file is renamed, and the folder afterwards, so
    that a power cut leaves either the whole new file or what was there before. For programs that
    write a file piece by piece; `write_atomically` does the same for data in memory.
    """
    partial = partial_path(path)
    flush_to_disk(partial)
    partial.replace(path)
    flush_to_disk(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path to write the new content of `path` to, and publish it if nothing failed.

    Missing folders are made. After an error the part is deleted and the old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        publish_partial(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, flush it to the disk, and create missing folders.

    Raises `OSError` if the file cannot be written. The old file is then unchanged.
    """
    with replacing(path) as partial:
        partial.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def write_json(path: Path, data: Any, indent: int = 2) -> None:
    """Write plain data as JSON with `write_atomically`."""
    write_atomically(path, json.dumps(data, indent=indent) + "\n")


def require_writable(path: Path, option: str = "--out", *, folder: bool = True) -> None:
    """Raise `UserError` if nothing can be written to `path`, before anything is computed for it.

    option: what gave the path. folder: whether it becomes a folder, and not a file.
    """
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() and (folder or there != path):
        why = f"{there} is no folder"
    elif not os.access(there, os.W_OK):
        why = f"{there} is not writable"
    else:
        return
    raise UserError(f"cannot write to {path}: {why}; give another {option}")


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FORMAT = "1"
"""The format of checkpoints."""


def read_header(path: Path | str) -> dict[str, str]:
    """Return the metadata of a checkpoint; see `ttm.policy.checkpoint`.

    Raises `UserError` if the file is missing, truncated, or no checkpoint of this version.
    """
    if not Path(path).is_file():
        raise UserError(
            f"{path}: no such checkpoint; give the .safetensors file that `ttm train` wrote"
        )
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path}: not a whole safetensors file ({first_line(error)}); copy it again, or train again"
        ) from error
    version = header.get("ttm_format")
    if version is None:
        raise UserError(
            f"{path}: a safetensors file, but not a policy; give one that `ttm train` wrote"
        )
    if version != FORMAT:
        raise UserError(
            f"{path}: checkpoint format {version}, this version reads {FORMAT}; update or train again"
        )
    return dict(header)


def read_checkpoint_spec(path: Path | str) -> PolicySpec:
    """Return what a checkpoint's policy observes and commands. Raises `UserError` as `read_header`."""
    header = read_header(path)
    try:
        return PolicySpec.from_json(header["spec"])
    except (KeyError, UserError) as error:
        raise UserError(f"{path}: {misfit(error)}") from error


def misfit(error: Exception) -> str:
    """Return what is said of a checkpoint whose content is not as expected."""
    return (
        f"this checkpoint was written by another version or is damaged ({first_line(error)}); "
        "train it again with this version"
    )
