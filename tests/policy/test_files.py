"""Files are written completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ttm.policy.files import partial_path, publish_partial, write_atomically, write_json


def test_a_file_is_written_with_its_folders_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_atomically(path, "old")
    write_atomically(path, "né".encode())
    assert path.read_text(encoding="utf-8") == "né"
    assert list(path.parent.iterdir()) == [path]


def test_json_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rates": [1, 0.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"rates": [1, 0.5]}


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    partial_path(path).mkdir()
    with pytest.raises(OSError, match=r"\.a\.txt\.partial"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_partial_file_gets_its_name_when_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    assert partial_path(path) == tmp_path / ".a.hdf5.partial"
    partial_path(path).write_bytes(b"complete")
    publish_partial(path)
    assert path.read_bytes() == b"complete"
    assert not partial_path(path).exists()
