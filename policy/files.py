"""Writing files so that a kill at any moment leaves the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def partial_path(path: Path) -> Path:
    """The temporary name next to `path` under which its new content is written."""
    return path.with_name(f".{path.name}.partial")


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, flush it to the disk, and make missing folders.

    Raises `OSError` if the file cannot be written; the old file is then still whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with partial.open("wb") as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, data: Any, indent: int = 2) -> None:
    """Write plain data as JSON with `write_atomically`."""
    write_atomically(path, json.dumps(data, indent=indent) + "\n")
