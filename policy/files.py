"""Files that are written atomically: a kill at any moment leaves the old file or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL_SUFFIX = ".partial"


def partial_path(path: Path) -> Path:
    """Return the temporary name beside `path` under which its new content is written."""
    return path.with_name(f".{path.name}{PARTIAL_SUFFIX}")


def publish_partial(path: Path) -> None:
    """Give the complete file at `partial_path(path)` its final name; even a power cut leaves a whole one."""
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
    """Write `data` (text as UTF-8) to `path`; after an `OSError` the old file is unchanged."""
    with replacing(path) as partial:
        partial.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON with `write_atomically`."""
    write_atomically(path, json.dumps(data, indent=2) + "\n")


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
