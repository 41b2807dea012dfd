"""A disk that fills up while an episode is recorded: the error is told, and earlier episodes stay whole.

The limit on the size of a file stands for the full disk, since every user may set it. The processes
end with exit code 0, which they did not while HDF5 crashed them at their exit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ttm.datasets import check_dataset, open_dataset

PROGRAM = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from ttm.datasets.writer import EpisodeWriter
from ttm.policy.errors import UserError
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
spec = PolicySpec("arm", (CameraSpec("head", 24, 32),), (), (ActionPart("arm", 1, "m"),), 5.0)
folder, every = Path(sys.argv[1]), int(sys.argv[2])


def record(name, ticks):
    with EpisodeWriter(folder / name, spec) as writer:
        for tick in range(ticks):
            frame = np.random.default_rng(tick).integers(0, 256, (24, 32, 3), dtype=np.uint8)
            writer.append({"head": frame}, [0.1 * (tick % 2)], timestamp_s=tick / 5)
            if every and tick % every == 0:
                writer.flush()
        writer.finish(instruction="wave")


record("episode_00000.hdf5", 10)
try:
    record("episode_00001.hdf5", 4000)
except UserError as error:
    print(error)
record("episode_00002.hdf5", 11)
"""


@pytest.mark.parametrize("flush_every", [1, 0], ids=["flushed", "noticed-at-the-end"])
def test_a_full_disk_costs_only_the_episode_in_hand(tmp_path: Path, flush_every: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(flush_every)],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stdout
    assert "(File too large); the episode is lost" in done.stdout
    assert done.stdout.count("\n") == 1
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "episode_00000.hdf5", "episode_00002.hdf5",
    ]  # fmt: skip
    assert len(open_dataset(tmp_path)) == 2
    assert all(fault.is_warning for fault in check_dataset(tmp_path).faults)
