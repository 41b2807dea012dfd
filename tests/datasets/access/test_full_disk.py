"""A disk that becomes full while HDF5 files are written, as a limit on the size of files shows it."""

from __future__ import annotations

import subprocess
import sys

import h5py
import pytest

from ttm.datasets.hdf5 import ROOM
from ttm.datasets.tools.arrange import merge_episodes, most_bytes

CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from ttm.training.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs a command that can write no more than so many bytes to a file."""


@pytest.fixture
def demos(tmp_path, record):
    """Four demos of about 60 kB each, in a file of two and two files of one."""
    for i in range(4):
        record(tmp_path / "demos" / f"{i}.hdf5", ticks=60, seed=i, instruction="wave")
    return tmp_path / "demos"


def limited(size, *words):
    command = [sys.executable, "-c", CODE, str(size), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["merge"], "all.hdf5"),
        (["filter", "--min-ticks", "2"], "all.hdf5"),
        (["pack", "--image-size", "16"], "packed"),
        (["convert", "--to", "robomimic"], "theirs.hdf5"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_full_disk_is_told_in_one_line_and_nothing_is_left(demos, tmp_path, words, out):
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / out
    place = [target] if words[0] == "convert" else ["--out", target]
    done = limited(40_000, "data", words[0], demos, *place, *words[1:])
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"cannot write {target} (File too large); is there space" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_space_that_was_reserved_and_not_needed_is_given_back(demos, tmp_path):
    """Without, the file would end with a quarter of a megabyte of zeros."""
    assert merge_episodes([demos], tmp_path / "all.hdf5") == (4, 4)
    files = sum(path.stat().st_size for path in demos.iterdir())
    assert (tmp_path / "all.hdf5").stat().st_size < files + 50_000
    with h5py.File(tmp_path / "all.hdf5") as file:
        assert len(file["data"]) == 4


def test_a_copy_of_a_demo_takes_no_more_than_is_reserved_for_it(demos, tmp_path, record):
    """JPEGs lie elsewhere in the file than their dataset, and count too."""
    record(tmp_path / "jpeg.hdf5", ticks=60, jpeg_quality=90)
    merged = tmp_path / "all.hdf5"
    merge_episodes([tmp_path / "jpeg.hdf5", demos], merged)
    for number in range(5):
        with h5py.File(merged) as source, h5py.File(tmp_path / "one.hdf5", "w") as target:
            demo = source[f"data/demo_{number}"]
            source.copy(demo, target, "demo")
            target.flush()
            assert target.id.get_filesize() <= most_bytes(demo) + ROOM
            assert most_bytes(demo) <= merged.stat().st_size
