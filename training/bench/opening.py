"""Write the data sets, open each twice in processes of their own, and compare with the bars."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.formats.hdf5 import write_demo_file
from ttm.datasets.formats.recording import FrameStream, Recording
from ttm.datasets.hdf5 import one_line
from ttm.datasets.index import VARIABLE
from ttm.datasets.windows import WindowDataset
from ttm.policy.errors import UserError, options, require_at_least, require_at_most
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.batches import BatchSource
from ttm.training.bench.common import Line, Report, bar_table
from ttm.training.bench.processes import resident_mb

# The episodes of `ttm bench opening`: as many as asked for, no two alike.

TICKS, SIDE = 16, 64
JPEG_QUALITY = 90
SPEC = PolicySpec(
    robot="bench",
    cameras=(CameraSpec("head", SIDE, SIDE),),
    proprioception=(ProprioceptionSpec("joints", tuple(f"{i} (rad)" for i in range(7))),),
    actions=(ActionPart("arm", 7, "m"),),
    rate_hz=10.0,
)


def write_files(folder: Path, episodes: int, files: int) -> None:
    """Write episodes to so many files, which have nearly equally many of them.

    Raises `UserError` if they cannot be written.
    """
    try:
        folder.mkdir()
        for number, portion in enumerate(np.array_split(np.arange(episodes), files)):
            _write_file(folder / f"episodes_{number:06d}.hdf5", portion.tolist())
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({one_line(error.strerror or error)}); give a --folder where there is "
            "space, and where you may write"
        ) from error


def _write_file(path: Path, numbers: Sequence[int]) -> None:
    recordings = ((place, _recording(number)) for place, number in enumerate(numbers))
    write_demo_file(path, SPEC, recordings, jpeg_quality=JPEG_QUALITY)


def _recording(number: int) -> Recording:
    """Return an episode that differs from those of other numbers in actions, vectors and frames."""
    rng = np.random.default_rng(number)
    grey = rng.integers(0, 200, (TICKS, 1, 1, 3), dtype=np.uint8)
    frames = np.broadcast_to(grey, (TICKS, SIDE, SIDE, 3)).copy()
    frames[:, : SIDE // 2, : SIDE // 2] += 50
    return Recording(
        name=f"demo_{number}",
        actions=rng.normal(size=(TICKS, 7)).astype(np.float32),
        vectors={"joints": rng.normal(size=(TICKS, 7)).astype(np.float32)},
        cameras={"head": FrameStream(partial(iter, frames))},
        instruction="bench",
        language_embedding=np.full(384, 384**-0.5, np.float32),
    )


# One opening of a data set, in this process, and a training's batches from it.
#
# `python -m ttm.training.bench.opening PATH BATCHES` prints what it took as JSON.

WINDOW, BATCH_SIZE = 8, 16
TENTHS = 10


@dataclass(frozen=True)
class Opened:
    """What one opening took, and the batches after it."""

    episodes: int
    clock_s: float
    processor_s: float
    peak_mb: float
    """The largest resident memory of the process, with its libraries."""
    growth_mb: float | None
    """How much memory the batches gained from their second tenth to their last; None without any."""


def opened(path: Path, batches: int) -> Opened:
    """Open a data set, and take so many batches of its windows from files."""
    begun, processor = time.perf_counter(), time.process_time()
    episodes = open_dataset(path)
    clock_s, processor_s = time.perf_counter() - begun, time.process_time() - processor
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    growth_mb = _growth_mb(episodes, batches) if batches else None
    return Opened(len(episodes), clock_s, processor_s, peak_mb, growth_mb)


def _growth_mb(episodes: EpisodeDataset, batches: int) -> float | None:
    """Return by how much the median of the memory is larger in the last tenth than in the second."""
    windows = WindowDataset(episodes, WINDOW, cache="none")
    made = BatchSource(windows, BATCH_SIZE, 0).batches(0)
    resident = []
    with closing(made):  # type: ignore[type-var]
        for _ in range(batches):
            next(made)
            resident.append(resident_mb())
    windows.frames.close()
    if None in resident:
        return None
    tenths = np.array_split(np.array(resident, float), TENTHS)
    return float(np.median(tenths[-1]) - np.median(tenths[1]))


if __name__ == "__main__":
    print(json.dumps(asdict(opened(Path(sys.argv[1]), int(sys.argv[2])))))


# The options of `ttm bench opening`.


@dataclass(frozen=True)
class OpeningOptions:
    """How large the data set is, and how much of it is trained on."""

    episodes: int = 20_000
    """Episodes, each in a file of its own, and again in --merged files."""
    merged: int = 10
    """Files that hold the same episodes together, one or more each."""
    batches: int = 2_000
    """Batches of 16 windows that a training takes after the second opening, from files."""
    folder: Path | None = None
    """Where the data set is written for the time of the measurement; by default where temporary files
    lie. 20,000 episodes take 2 GB."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "episodes", "merged"))
        require_at_most(self.episodes, options(self, "merged"))
        require_at_least(20, options(self, "batches"))
        if self.folder is not None and not self.folder.is_dir():
            raise UserError(f"--folder {self.folder} is no folder; make it, or give another one")


FIRST_S, SECOND_S, PEAK_MB, GROWTH_MB = 60.0, 5.0, 2000.0, 20.0
"""The bars, for 20,000 episodes on two cores."""
NOTES = """\
  memory      the largest of the process that opened the data, with its libraries.
  growth      from the second to the last tenth of {batches} batches, which are made from files.
"""


def run_bench(options: OpeningOptions) -> int:
    """Measure both data sets, print tables, and write the figures; return 1 if a bar was missed."""
    report = Report(options.json, episodes=options.episodes, batches=options.batches)
    every: list[Line] = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ttm_opening_") as made:
        for name, files in (("single", options.episodes), ("merged", options.merged)):
            folder = Path(made) / name
            write_files(folder, options.episodes, files)
            first = measured(folder, 0)
            second = measured(folder, options.batches)
            rows = list(lines(first, second))
            report.table(bar_table(f"{options.episodes} episodes in {files} files", rows))
            report.figures[name] = {"first": asdict(first), "second": asdict(second)}
            every += rows
    report.text(NOTES.format(batches=options.batches))
    report.write()
    return int(any(line.holds is False for line in every))


def lines(first: Opened, second: Opened) -> Iterator[Line]:
    """Yield the figures of two openings beside their bars."""
    for what, value, bar in (
        ("first opening, s", first.clock_s, FIRST_S),
        ("second opening, s", second.clock_s, SECOND_S),
        ("memory, first, MB", first.peak_mb, PEAK_MB),
        ("memory, second, MB", second.peak_mb, PEAK_MB),
        ("growth in training, MB", second.growth_mb, GROWTH_MB),
    ):
        yield Line(what, value, 1, f"{bar:g}", None if value is None else value <= bar)
    yield Line("first opening, processor s", first.processor_s, 1, "", None)
    yield Line("second opening, processor s", second.processor_s, 1, "", None)


def measured(folder: Path, batches: int) -> Opened:
    """Open `folder` in a new process, whose index lies beside the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "ttm.training.bench.opening", str(folder), str(batches)],
        env={**os.environ, VARIABLE: str(folder.with_suffix(".sqlite"))},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"opening {folder} ended with exit code {done.returncode}; its output is above"
        )
    return Opened(**json.loads(done.stdout))


# `ttm bench opening`: open a large data set twice, and train on it from files.


@dataclass(frozen=True)
class BenchOpeningCommand(OpeningOptions):
    """Open a large data set for the first and the second time, and take batches from its files.

    Made-up episodes are written in one file each, and again in a few merged files. Each opening is a
    process of its own, of which time and largest memory are told; the second finds the index that the
    first has left. After it, batches are made as in a training, and the growth of memory is told. The
    exit code is 1 if a bar was missed. Run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        return run_bench(self)
