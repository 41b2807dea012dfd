"""How a dataset is stored: whether its values are in the file at all, and can be read."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

from ttm.datasets.access.links import ALLOW, find_member
from ttm.datasets.access.unreadable import one_line
from ttm.policy.errors import UserError

MOST_CHUNK_BYTES = 2**30
"""A larger chunk would be unpacked as a whole to read one value."""

MOST_VALUES_BYTES = 4 * 2**30
"""Actions, vectors and timestamps of one episode are read as a whole, and never take so much."""

FILTERS = {32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd"}
"""Names of filters that HDF5 itself does not have; the package `hdf5plugin` brings them."""


def require_readable(file: Any, *, allow_external: bool = False) -> None:
    """Raise `UserError` if anything in an open file leads out of it, or has values that must not be read.

    What is not read is judged, too. Nothing outside of the file is opened, and no value is read.
    """

    links: list[tuple[bytes, int]] = []
    file.id.links.visit(lambda path, link: links.append((path, link.type)), info=True)
    for path, kind in links:
        name = path.decode("utf-8", "surrogateescape")
        if kind == h5py.h5l.TYPE_SOFT:
            continue  # what it leads to is judged where it lies
        stored = find_member(file, name, allow_external=allow_external)
        if kind == h5py.h5l.TYPE_HARD and isinstance(stored, h5py.Dataset):
            whole = stored.dtype != np.uint8  # frames are read one by one
            fault = storage_fault(stored, whole=whole, allow_external=allow_external)
            if fault is not None:
                raise UserError(f"{one_line(name)}: {fault[0]}; {fault[1]}")


def storage_fault(
    dataset: Any, *, whole: bool, allow_external: bool = False
) -> tuple[str, str] | None:
    """Return why the values of a dataset cannot or must not be read, with a remedy; or None.

    No value is read. whole: the dataset is small enough to be read as a whole, unlike frames.
    """
    if not allow_external and (fault := outside_fault(dataset)):
        return fault
    if missing := _missing_filter(dataset):
        return f"it is compressed by {missing}, which is not installed", (
            "run `h5repack -f GZIP=1` where it is, or install hdf5plugin and import it"
        )
    if whole and dataset.nbytes > MOST_VALUES_BYTES:
        return f"it declares {dataset.nbytes / 2**30:.0f} GiB", "write it in its real size"
    if dataset.chunks is None:
        return _unwritten(dataset, int(dataset.id.get_storage_size() > 0), 1)
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_bytes > MOST_CHUNK_BYTES:
        return f"its chunks unpack to {chunk_bytes / 2**30:.1f} GiB each", (
            "rewrite it in small chunks, such as one frame each (h5repack -l)"
        )
    pairs = zip(dataset.shape, dataset.chunks, strict=True)
    needed = math.prod(-(-size // chunk) for size, chunk in pairs)
    return _unwritten(dataset, dataset.id.get_num_chunks() if needed else 0, needed)


def outside_fault(dataset: Any) -> tuple[str, str] | None:
    """Return in which other file the values of a dataset lie, with a remedy; None if in none."""
    outside = _outside(dataset)
    if not outside:
        return None
    return f"{outside}, which is not followed", (
        f"copy the data into the file (h5repack), or give {ALLOW} if you trust it"
    )


def _unwritten(dataset: Any, written: int, needed: int) -> tuple[str, str] | None:
    """Return the fault of a dataset whose values would be read as zeros that nobody recorded."""
    if not dataset.size or dataset.external or dataset.is_virtual or written >= needed:
        return None
    part = "none of its values were" if not written else f"only {written} of {needed} chunks were"
    return (
        f"it declares shape {dataset.shape}, but {part} written",
        "its writer was stopped; take the rows that were written, or record it again",
    )


def _outside(dataset: Any) -> str:
    if dataset.external:
        return f"its values lie in another file ({dataset.external[0][0]})"
    return "it is a virtual dataset, made of other ones" if dataset.is_virtual else ""


def _missing_filter(dataset: Any) -> str:
    properties = dataset.id.get_create_plist()
    for index in range(properties.get_nfilters()):
        code = properties.get_filter(index)[0]
        if not h5py.h5z.filter_avail(code) and _is_applied(dataset, index):
            return FILTERS.get(code, f"filter {code}")
    return ""


def _is_applied(dataset: Any, index: int) -> bool:
    """Return whether the first chunk went through a filter; writers may leave out optional ones."""
    if not dataset.id.get_num_chunks():
        return False
    return not dataset.id.get_chunk_info(0).filter_mask & (1 << index)
