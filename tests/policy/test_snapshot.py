"""Snapshots from strangers, and the rule of freshness."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ttm.policy import UserError
from ttm.policy.errors import StaleObservation
from ttm.policy.snapshot import (
    MOST_BYTES,
    read_snapshot,
    require_fresh,
    snapshot_from_bytes,
    snapshot_to_bytes,
)


def _with_array(size: int, content: bytes = b"") -> bytes:
    """Return an archive with one array that declares so many bytes, and has these."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("memory.npy", "w") as file,
    ):
        head = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _with_array(1 << 50),  # a petabyte, of which nothing follows
        lambda: _with_array(MOST_BYTES - 1),
        lambda: _with_array(MOST_BYTES + 1, bytes(MOST_BYTES + 1)),  # zeros, deflated to some kB
    ],
)
def test_what_a_snapshot_declares_is_judged_before_it_is_unpacked(
    make: Callable[[], bytes],
) -> None:
    data = make()
    assert len(data) < 1_000_000
    tracemalloc.start()
    with pytest.raises(UserError, match="no snapshot"):
        snapshot_from_bytes(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.npz"
    path.write_bytes(snapshot_to_bytes({"tick": np.array(3)}))
    assert read_snapshot(path)["tick"] == 3
    os.truncate(path, MOST_BYTES + 1)
    tracemalloc.start()
    with pytest.raises(UserError, match="at most"):
        read_snapshot(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


# The rule of freshness, which `PolicyRunner` and the control loop of the ROS node share.


@pytest.mark.parametrize("age_s", [0.0, 0.5, -0.5])
def test_ages_within_the_limit_pass(age_s: float) -> None:
    require_fresh(age_s, 0.5)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (0.51, "0.510 s old"),
        (-0.51, "0.510 s ahead of the clock"),
        (float("inf"), "inf s old"),
        (float("nan"), "nan s old"),
    ],
)
def test_old_future_and_undefined_ages_are_refused(age_s: float, words: str) -> None:
    with pytest.raises(StaleObservation, match=words):
        require_fresh(age_s, 0.5)
