"""`ttm bench loader`: the time of the batches of a training, by where their frames come from.

Episodes of made-up pictures are written to one file of each storage.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.formats.hdf5 import write_demo_file
from ttm.datasets.formats.recording import FrameStream, Recording
from ttm.datasets.frames import Frames
from ttm.datasets.samplers import SECTION
from ttm.datasets.windows import WindowDataset
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.batches import BatchSource, FromZero
from ttm.training.bench.common import BenchCommand, Cell, Figures, Report, decimals, repeated
from ttm.training.options import AugmentationConfig

Storage = Literal["ram", "raw", "gzip", "jpeg"]

CAMERA, VECTOR = "head", "joints"
EPISODES, TICKS = 8, 32
JPEG_QUALITY = 90
DETAIL, NOISE = 20, 2.0
"""Pixels between two random values of a picture, and the standard deviation of a sensor's noise: JPEGs are
then as large as those of photographs."""

BATCH_SIZE, WINDOW = 16, 8
"""Windows in a batch, and ticks in a window."""
STEP_S, STEPS = 0.1, 8
"""How long a training step lasts besides, as on a GPU, and the steps over which waiting is measured."""
WARM_UP, SECTIONS_WARM_UP = 2, 8
"""Batches that are not counted, and windows of each open section."""
WINDOWS_IN_A_LANE = 8 * SECTION
"""So long are the lanes of windows from files at least: the demos come so many times in the data set,
each time as others, of which nothing is kept."""
NOTES = f"""\
  frames      as they are stored, and the side to which they are resized, in pixels.
  kB          size of a frame in the file, in thousands of bytes.
  workers     processes that make batches; 0: a thread of the training's process.
  windows/s   windows a second, augmented, while nothing else is done; per core: by processor time.
  waiting     portion of a training step that is waited, if it takes {STEP_S * 1e3:g} ms besides.
"""


@dataclass(frozen=True)
class FrameSize:
    """The size of stored frames, and that at which a network gets them, in pixels."""

    height: int
    width: int
    side: int

    @classmethod
    def parsed(cls, text: str) -> FrameSize:
        """Read a size such as 224, or 480x640:224. Raises `UserError` if it is none."""
        found = re.fullmatch(r"(\d+)(?:x(\d+)(?=:))?(?::(\d+))?", text)
        sizes = [int(part or found[1]) for part in found.groups()] if found else [0]
        if min(sizes) < 1:
            raise UserError(f"--sizes has '{text}'; give a side such as 224, or 480x640:224")
        return cls(*sizes)

    @property
    def is_resized(self) -> bool:
        """Whether a network gets another size than that of the files."""
        return (self.height, self.width) != (self.side, self.side)

    @property
    def text(self) -> str:
        """The size in words."""
        return f"{self.height}x{self.width} to {self.side}" if self.is_resized else str(self.side)


def write_data(path: Path, size: FrameSize, storage: Storage) -> None:
    """Write a file of `EPISODES` demos of an arm, as robomimic writes them too; those of "ram" are raw."""
    spec = PolicySpec(
        robot="bench",
        cameras=(CameraSpec(CAMERA, size.height, size.width),),
        proprioception=(ProprioceptionSpec(VECTOR, tuple(f"{i} (rad)" for i in range(7))),),
        actions=(ActionPart("arm", 7, "m"),),
        rate_hz=10.0,
    )

    def recording(number: int) -> Recording:
        rng = np.random.default_rng(number)
        return Recording(
            name=f"demo_{number}",
            actions=rng.normal(size=(TICKS, 7)).astype(np.float32),
            vectors={VECTOR: rng.normal(size=(TICKS, 7)).astype(np.float32)},
            cameras={CAMERA: FrameStream(partial(pictures, number, size))},
            instruction="bench",
            language_embedding=np.full(384, 384**-0.5, np.float32),
        )

    write_demo_file(
        path,
        spec,
        ((number, recording(number)) for number in range(EPISODES)),
        jpeg_quality=JPEG_QUALITY if storage == "jpeg" else None,
        compression="gzip" if storage == "gzip" else "none",
    )


def pictures(number: int, size: FrameSize) -> Iterator[Frames]:
    """Yield smooth random pictures with some noise, (H, W, 3) uint8."""
    rng = np.random.default_rng((number, 1))
    coarse_size = (-(-size.height // DETAIL), -(-size.width // DETAIL), 3)
    for _ in range(TICKS):
        coarse = Image.fromarray(rng.integers(0, 256, coarse_size, dtype=np.uint8))
        smooth = np.asarray(coarse.resize((size.width, size.height), Image.Resampling.BICUBIC))
        noisy = smooth + rng.normal(0, NOISE, (size.height, size.width, 3))
        yield noisy.clip(0, 255).astype(np.uint8)


def measure_case(
    path: Path, size: FrameSize, storage: Storage, bench: BenchLoaderCommand
) -> list[Figures]:
    """Time batches from a file of `write_data`, augmented as in a training, by each number of workers."""
    in_memory, episodes = storage == "ram", open_dataset(path)
    if not in_memory and bench.shuffle:
        times = -(-bench.shuffle * BATCH_SIZE * WINDOWS_IN_A_LANE // episodes.num_ticks)
        episodes = EpisodeDataset(list(episodes) * times, episodes.spec, source=str(path))
    resized = {CAMERA: (size.side, size.side)}
    cache: Literal["ram", "none"] = "ram" if in_memory else "none"
    windows = WindowDataset(episodes, WINDOW, resize_to=resized, cache=cache)
    memory = FromZero(None if in_memory else bench.shuffle or None)
    rows: list[Figures] = []
    for workers in bench.workers:
        how: dict[str, Any] = {"augmentation": AugmentationConfig(), "workers": workers}
        batches = BatchSource(windows, BATCH_SIZE, 0, memory=memory, **how).batches(0)
        with closing(batches):  # type: ignore[type-var]
            read = partial(next, batches)
            repeated(read, WARM_UP + (memory.apart or 0) * SECTIONS_WARM_UP)
            count, spent, clock = read_for(bench.seconds, read)
            waited = 0.0
            for _ in range(STEPS):
                time.sleep(STEP_S)
                waited += float(repeated(read, 1)[0])
        rows.append(
            {
                "size": size.text,
                "storage": storage,
                "frame_kb": path.stat().st_size / (EPISODES * TICKS) / 1e3,
                "workers": workers,
                "windows_per_s": count / clock,
                # The time of workers is not counted.
                "windows_per_core_s": None if workers else count / spent,
                "waiting": waited / (waited + STEPS * STEP_S),
            }
        )
    windows.frames.close()
    return rows


def read_for(seconds: float, read: Callable[[], object]) -> tuple[int, float, float]:
    """Read batches for some time; return their windows, and seconds of the processor and on the clock."""
    count, clock, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - clock < seconds or not count:
        read()
        count += BATCH_SIZE
    return count, time.process_time() - spent, time.perf_counter() - clock


@dataclass(frozen=True)
class BenchLoaderCommand(BenchCommand):
    """Time the batches of a training, with frames from memory and from files.

    Episodes of random smooth pictures are written to a temporary folder, which takes up to a
    gigabyte. Prints windows a second, and the share of a training step that is spent waiting for its
    batch. Takes some minutes; run it while nothing else runs.
    """

    sizes: tuple[str, ...] = ("64", "224", "480x640:224")
    """Sizes of the stored frames in pixels: a side, or height x width : side of the network's frames,
    to which they are then resized."""
    storages: tuple[Storage, ...] = ("ram", "raw", "gzip", "jpeg")
    """Where the frames come from: decoded in memory, or files of raw, gzip-compressed or JPEG frames."""
    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of worker processes, as `ttm train --workers` has them."""
    shuffle: int = 6
    """Batches from one window of a section to the next, as `ttm train` has them for frames from
    files; 0 draws windows from all data."""
    seconds: float = 3.0
    """How long each case is timed."""

    def measure(self, report: Report) -> None:
        """Time all cases on one thread."""
        require_some(options(self, "sizes", "storages", "workers"))
        require_above_0(options(self, "seconds"))
        require_at_least(0, options(self, "shuffle") | {"--workers": min(self.workers)})
        sizes = [FrameSize.parsed(text) for text in self.sizes]
        rows: list[Figures] = []
        with cpu_threads(1), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.hdf5"
            for size, storage in product(sizes, self.storages):
                write_data(path, size, storage)
                rows += measure_case(path, size, storage, self)
                path.unlink()
        columns: dict[str, Cell] = {
            "frames": "{size}",
            "from": "{storage}",
            "kB": "{frame_kb:.0f}",
            "workers": "{workers}",
            "windows/s": "{windows_per_s:.0f}",
            "per core": lambda row: decimals(row["windows_per_core_s"], 0),
            "waiting": "{waiting:.0%}",
        }
        report.rows("loading", "Batches of a training", columns, rows, NOTES)
