"""Snapshots of a runner as bytes, for a file or a message."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ttm.policy.errors import UserError
from ttm.policy.spec import Array


def snapshot_to_bytes(snapshot: Mapping[str, Array]) -> bytes:
    """Encode the result of `PolicyRunner.snapshot` in NumPy's .npz format."""
    file = io.BytesIO()
    np.savez(file, **snapshot)  # type: ignore[arg-type]
    return file.getvalue()


def snapshot_from_bytes(data: bytes) -> dict[str, Array]:
    """Decode a snapshot for `PolicyRunner.restore`. This never unpickles.

    Raises `UserError` for anything but a whole snapshot.
    """
    file = io.BytesIO(data)
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("no .npz archive, or not a whole one")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(
            f"{len(data)} bytes are no snapshot ({error}); give what snapshot_to_bytes made"
        ) from error


def text_to_array(text: str) -> npt.NDArray[np.uint8]:
    """Return a text as an entry of a snapshot."""
    return np.array(list(text.encode()), np.uint8)


def array_to_text(values: Array) -> str:
    """Return the text that `text_to_array` made an entry of."""
    return np.asarray(values, np.uint8).tobytes().decode()
