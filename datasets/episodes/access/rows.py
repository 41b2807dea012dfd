"""Reading a few rows of a dataset whose chunks hold many: each chunk is unpacked once, not for each read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

KEPT_BYTES = 2**29
"""Unpacked rows of so many bytes are kept by each process; larger chunks are unpacked for each read."""

_kept: Mapping[Any, npt.NDArray[Any]] = {}
"""Rows that were read last, the newest first. It is replaced and never changed, so that it needs no lock."""


def read_rows(dataset: Any, start: int, stop: int) -> npt.NDArray[Any]:
    """Return `dataset[start:stop]` of an open dataset.

    Of compressed chunks with more rows than these, all rows are unpacked and kept for the next reads,
    also after the file was closed.
    """
    global _kept
    stop = min(stop, len(dataset))
    first, last = _span(dataset, start, stop)
    row_bytes = dataset.nbytes // max(len(dataset), 1)
    if last - first <= stop - start or (last - first) * row_bytes > KEPT_BYTES:
        return _values(dataset, start, stop)
    try:
        file = os.stat(dataset.file.filename)
    except OSError:  # a file that has been deleted or renamed meanwhile
        return _values(dataset, start, stop)
    state = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    key = (state, dataset.name, first, last)
    rows = _kept.get(key)
    if rows is None:
        rows = _values(dataset, first, last)
    room, kept = KEPT_BYTES - rows.nbytes, {key: rows}
    for other, values in _kept.items():
        if other != key and (room := room - values.nbytes) >= 0:
            kept[other] = values
    _kept = kept
    asked: npt.NDArray[Any] = rows[start - first : stop - first].copy()
    return asked


def _span(dataset: Any, start: int, stop: int) -> tuple[int, int]:
    """Return which rows are unpacked where the rows `start` to `stop` - 1 are read."""
    is_packed = dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters()
    if not is_packed or dataset.dtype.kind == "O" or start >= stop:
        return start, stop
    rows = dataset.chunks[0]
    return start // rows * rows, min(-(-stop // rows) * rows, len(dataset))


def _values(dataset: Any, start: int, stop: int) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = dataset[start:stop]
    return values
