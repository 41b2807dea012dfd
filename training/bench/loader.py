"""Write the episodes, time their windows, and report."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from rich.table import Table
from torch.utils.data import default_collate

from ttm.datasets.dataset import EpisodeDataset, open_dataset
from ttm.datasets.formats.hdf5 import write_demo_file
from ttm.datasets.formats.recording import FrameStream, Recording
from ttm.datasets.frames import Frames
from ttm.datasets.samplers import SECTION
from ttm.datasets.windows import WindowDataset
from ttm.policy.engines import cpu_threads
from ttm.policy.errors import UserError, options, require_above_0, require_at_least, require_some
from ttm.policy.spec import ActionPart, CameraSpec, PolicySpec, ProprioceptionSpec
from ttm.training.batches import BatchSource, TrainingBatch
from ttm.training.bench.common import Report, decimals, rows_table
from ttm.training.memory_start import FromZero
from ttm.training.options import AugmentationConfig

# The options of `ttm bench loader`.

Storage = Literal["ram", "raw", "gzip", "jpeg"]


@dataclass(frozen=True)
class FrameSize:
    """The size of stored frames, and that at which a network gets them, in pixels."""

    height: int
    width: int
    side: int

    @classmethod
    def parsed(cls, text: str) -> FrameSize:
        """Read a size such as 224, or 480x640:224. Raises `UserError` if it is none."""
        found = re.fullmatch(r"(\d+)(?:x(\d+))?(?::(\d+))?", text)
        numbers = [] if found is None else [int(part) for part in found.groups() if part]
        if found is None or min(numbers) < 1 or (found[2] and not found[3]):
            raise UserError(
                f"--sizes has '{text}'; give a side such as 224, or height x width : side of the "
                "network's frames, such as 480x640:224"
            )
        height = int(found[1])
        return cls(height, int(found[2] or height), int(found[3] or height))

    @property
    def text(self) -> str:
        """The size in words."""
        if (self.height, self.width) == (self.side, self.side):
            return str(self.side)
        return f"{self.height}x{self.width} to {self.side}"


@dataclass(frozen=True)
class LoaderOptions:
    """Which frames are loaded, from where, and by how many processes."""

    sizes: tuple[str, ...] = ("64", "224", "480x640:224")
    """Sizes of the stored frames in pixels: a side, or height x width : side of the network's frames,
    to which they are then resized."""
    storages: tuple[Storage, ...] = ("ram", "raw", "gzip", "jpeg")
    """Where the frames come from: decoded in memory, or files of raw, gzip-compressed or JPEG frames."""
    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of worker processes, as `ttm train --workers` has them."""
    batch_size: int = 16
    """Windows in a batch."""
    window: int = 8
    """Ticks in a window."""
    shuffle: int = 6
    """Batches from one window of a section to the next, as `ttm train --shuffle` has them for frames from
    files; 0 draws windows from all data. More take longer until the first sections are used up, which is
    not timed, and read as often afterwards."""
    seconds: float = 3.0
    """How long each case is timed."""
    step_ms: float = 100.0
    """How long a training step lasts besides, as on a GPU, for the share of it that is waited."""
    json: Path | None = None
    """Also write all figures to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_some(options(self, "sizes", "storages", "workers"))
        require_at_least(1, options(self, "batch_size", "window"))
        require_above_0(options(self, "seconds", "step_ms"))
        require_at_least(0, options(self, "shuffle"))
        for count in self.workers:
            require_at_least(0, {"--workers": count})
        for text in self.sizes:
            FrameSize.parsed(text)


# `ttm bench loader`: time the batches of a training, by where their frames come from.


@dataclass(frozen=True)
class BenchLoaderCommand(LoaderOptions):
    """Time the batches of a training, with frames from memory and from files.

    Episodes of random smooth pictures are written to a temporary folder, which takes up to a
    gigabyte. Prints windows a second, and the share of a training step that is spent waiting for its
    batch. Where robomimic is installed, its SequenceDataset reads the same windows beside. Takes some
    minutes; run it while nothing else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()

        run_bench(self)
        return 0


# The episodes whose windows are loaded: made-up ones, in one file of each storage.

CAMERA = "head"
VECTOR = "joints"
EPISODES, TICKS = 8, 32
JPEG_QUALITY = 90
DETAIL = 20
"""Pixels between two random values of a picture: cameras are smooth at this scale.

JPEGs of 640x480 then have about 96 kB each. Photographs have 74 to 125 kB: flower.jpg and china.jpg of
scikit-learn, enlarged to 640x480, by `encode_jpeg` in quality 90, as the recorder writes."""
NOISE = 2.0
"""The standard deviation of a sensor's noise."""


def made_up_spec(size: FrameSize) -> PolicySpec:
    """Return the spec of an arm with one camera."""
    return PolicySpec(
        robot="bench",
        cameras=(CameraSpec(CAMERA, size.height, size.width),),
        proprioception=(ProprioceptionSpec(VECTOR, tuple(f"{i} (rad)" for i in range(7))),),
        actions=(ActionPart("arm", 7, "m"),),
        rate_hz=10.0,
    )


def write_data(path: Path, size: FrameSize, storage: Storage) -> None:
    """Write a file of `EPISODES` demos, as robomimic writes them too; those of "ram" are raw."""
    write_demo_file(
        path,
        made_up_spec(size),
        ((number, _recording(number, size)) for number in range(EPISODES)),
        jpeg_quality=JPEG_QUALITY if storage == "jpeg" else None,
        compression="gzip" if storage == "gzip" else "none",
    )


def frame_kb(path: Path) -> float:
    """Return the size of a frame in a file of `write_data`, in thousands of bytes."""
    return path.stat().st_size / (EPISODES * TICKS) / 1e3


def _recording(number: int, size: FrameSize) -> Recording:
    rng = np.random.default_rng(number)
    return Recording(
        name=f"demo_{number}",
        actions=rng.normal(size=(TICKS, 7)).astype(np.float32),
        vectors={VECTOR: rng.normal(size=(TICKS, 7)).astype(np.float32)},
        cameras={CAMERA: FrameStream(partial(_pictures, number, size))},
        instruction="bench",
        language_embedding=np.full(384, 384**-0.5, np.float32),
    )


def _pictures(number: int, size: FrameSize) -> Iterator[Frames]:
    rng = np.random.default_rng((number, 1))
    return (_picture(size, rng) for _ in range(TICKS))


def _picture(size: FrameSize, rng: np.random.Generator) -> Frames:
    """Return a smooth random picture with some noise, (H, W, 3) uint8."""
    coarse = rng.integers(
        0, 256, (-(-size.height // DETAIL), -(-size.width // DETAIL), 3), dtype=np.uint8
    )
    picture = Image.fromarray(coarse).resize((size.width, size.height), Image.Resampling.BICUBIC)
    noisy = np.asarray(picture) + rng.normal(0, NOISE, (size.height, size.width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


# Time the batches that a training would get.

WARM_UP = 2
"""Batches that are not counted."""
SECTIONS_WARM_UP = 8
"""Windows of each open section that are not counted."""
WINDOWS_IN_A_LANE = 8 * SECTION
"""So long are the lanes of windows from files at least: the demos come so many times in the data set,
each time as others, of which nothing is kept."""
STEPS = 8
"""Steps over which the share of waiting is taken."""


@dataclass(frozen=True)
class LoaderRow:
    """How fast batches came in one case."""

    size: str
    storage: Storage
    frame_kb: float
    """Size of a frame in the file, in thousands of bytes."""
    workers: int
    windows_per_s: float
    """On the clock, while nothing but loading is done."""
    windows_per_core_s: float | None
    """Per second of processor time; None with workers, whose time is not counted."""
    waiting: float
    """The portion of a training step that passes until its batch is there."""


def windows_of(
    path: Path, size: FrameSize, storage: Storage, options: LoaderOptions
) -> WindowDataset:
    """Return the windows of a file, with the frames in memory or not."""
    episodes = open_dataset(path)
    lanes = options.shuffle * options.batch_size
    times = -(-lanes * WINDOWS_IN_A_LANE // episodes.num_ticks)
    if storage != "ram" and times:
        episodes = EpisodeDataset(list(episodes) * times, episodes.spec, source=str(path))
    return WindowDataset(
        episodes,
        options.window,
        resize_to={CAMERA: (size.side, size.side)},
        cache="ram" if storage == "ram" else "none",
    )


def memory_start_of(storage: Storage, options: LoaderOptions) -> FromZero:
    """Return what draws the windows as a training does, with sections for those from files."""
    return FromZero(None if storage == "ram" else options.shuffle or None)


def warm_up(start: FromZero) -> int:
    """Return the number of batches that are not counted."""
    return WARM_UP + (start.apart or 0) * SECTIONS_WARM_UP


def measure_case(
    windows: WindowDataset,
    size: FrameSize,
    storage: Storage,
    frame_kb: float,
    workers: int,
    options: LoaderOptions,
) -> LoaderRow:
    """Time the batches of `windows`, augmented as in a training, made by so many workers."""
    start = memory_start_of(storage, options)
    source = BatchSource(
        windows,
        options.batch_size,
        0,
        augmentation=AugmentationConfig(),
        memory=start,
        workers=workers,
    )
    batches = source.batches(0)
    with closing(batches):  # type: ignore[type-var]
        for _ in range(warm_up(start)):
            next(batches)
        speed = _speed(batches, options)
        waiting = _waiting(batches, options.step_ms / 1e3)
    per_core = None if workers else speed["processor"]
    return LoaderRow(size.text, storage, frame_kb, workers, speed["clock"], per_core, waiting)


def _speed(batches: Iterator[TrainingBatch], options: LoaderOptions) -> Mapping[str, float]:
    """Return windows a second, by the clock and by the time of this process on a processor."""
    count, begun, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < options.seconds or not count:
        next(batches)
        count += options.batch_size
    return {
        "clock": count / (time.perf_counter() - begun),
        "processor": count / (time.process_time() - processor),
    }


def _waiting(batches: Iterator[Any], step_s: float) -> float:
    """Return the portion of training steps that is waited, if a step takes `step_s` besides."""
    waited = 0.0
    for _ in range(STEPS):
        time.sleep(step_s)
        begun = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - begun
    return waited / (waited + STEPS * step_s)


# The same windows read by robomimic's `SequenceDataset`, where it is installed.
#
# It neither decodes JPEGs nor resizes or augments frames, so that only reading is compared.

ROUNDS = 5
"""Turns that both readers take."""
READABLE: Sequence[Storage] = ("ram", "raw", "gzip")
"""What robomimic reads."""


@dataclass(frozen=True)
class ReadingRow:
    """Windows a second of processor time, unchanged, read by both."""

    size: str
    storage: Storage
    ours: float
    robomimics: float

    @property
    def ratio(self) -> float:
        """Ours over robomimic's."""
        return self.ours / self.robomimics


def is_installed() -> bool:
    """Return whether robomimic can be imported."""
    return find_spec("robomimic") is not None


def measure_reading(
    path: Path, windows: WindowDataset, size: FrameSize, storage: Storage, options: LoaderOptions
) -> ReadingRow:
    """Let both read batches of windows from the same file, in turns.

    Ours come in the order of a training, and robomimic's in random order, as its trainings have them.
    """
    theirs = _sequence_dataset(path, storage, options.window)
    rng = np.random.default_rng(0)
    ours = _ours(windows, storage, options)

    def robomimics() -> object:
        chosen = rng.integers(0, len(theirs), options.batch_size).tolist()
        return default_collate([theirs[index] for index in chosen])

    readers: list[Callable[[], object]] = [partial(next, ours), robomimics]
    for _ in range(warm_up(memory_start_of(storage, options))):
        next(ours)
    taken, counts = [0.0, 0.0], [0, 0]
    for turn in range(ROUNDS + 1):
        for reader, read in enumerate(readers):
            begun, clock, count = time.process_time(), time.perf_counter(), 0
            while time.perf_counter() - clock < options.seconds / ROUNDS or not count:
                read()
                count += options.batch_size
            if turn:  # the first turn warms up
                taken[reader] += time.process_time() - begun
                counts[reader] += count
    windows_per_s = (count / seconds for count, seconds in zip(counts, taken, strict=True))
    return ReadingRow(size.text, storage, *windows_per_s)


def _ours(windows: WindowDataset, storage: Storage, options: LoaderOptions) -> Iterator[object]:
    """Yield batches as a training reads them, and before it augments them."""
    start = memory_start_of(storage, options)
    recent = BatchSource(windows, options.batch_size, 0, memory=start).recent_frames()
    for pick in start.picks(windows, options.batch_size, seed=0, first_batch=0):
        yield windows.gather_at(pick.places, recent=recent)


def _sequence_dataset(path: Path, storage: Storage, window: int) -> Any:
    import_module("robomimic.utils.obs_utils").initialize_obs_utils_with_obs_specs(
        {"obs": {"low_dim": [VECTOR], "rgb": [CAMERA]}}
    )
    return import_module("robomimic.utils.dataset").SequenceDataset(
        hdf5_path=str(path),
        obs_keys=(CAMERA, VECTOR),
        dataset_keys=("actions",),
        seq_length=window,
        hdf5_cache_mode="all" if storage == "ram" else None,
        hdf5_use_swmr=False,
        load_next_obs=False,
    )


# The tables that `ttm bench loader` prints.

NOTES = """\
  frames      as they are stored, and the side to which they are resized, in pixels.
  kB          size of a frame in the file, in thousands of bytes.
  workers     processes that make batches; 0: a thread of the training's process.
  windows/s   windows a second, augmented, while nothing else is done.
  per core    windows per second of processor time.
  waiting     portion of a training step that is waited, if it takes {step:g} ms besides.
"""
READING_NOTES = """\
  Windows per second of processor time, read in turns in one process, neither resized nor augmented.
  ours: in the order of a training, from files in sections (--shuffle).
  robomimic: its SequenceDataset in random order, with hdf5_cache_mode "all" for ram and None for files.
"""


def loader_table(rows: Sequence[LoaderRow]) -> Table:
    """Return the table of a training's batches."""
    return rows_table(
        "Batches of a training",
        {
            "frames": lambda row: row.size,
            "from": lambda row: row.storage,
            "kB": lambda row: f"{row.frame_kb:.0f}",
            "workers": lambda row: str(row.workers),
            "windows/s": lambda row: f"{row.windows_per_s:.0f}",
            "per core": lambda row: decimals(row.windows_per_core_s, 0),
            "waiting": lambda row: f"{row.waiting:.0%}",
        },
        rows,
    )


def reading_table(rows: Sequence[ReadingRow]) -> Table:
    """Return the table of reading alone, beside robomimic."""
    return rows_table(
        "Reading alone, beside robomimic",
        {
            "frames": lambda row: row.size,
            "from": lambda row: row.storage,
            "ours": lambda row: f"{row.ours:.0f}",
            "robomimic": lambda row: f"{row.robomimics:.0f}",
            "ratio": lambda row: f"{row.ratio:.2f}",
        },
        rows,
    )


def notes(options: LoaderOptions) -> str:
    """Return the notes on the first table."""
    return NOTES.format(step=options.step_ms)


NOT_THERE = "robomimic is not installed here, so that nothing is compared with it."


def run_bench(options: LoaderOptions) -> None:
    """Time all cases on one thread, print tables, and write the figures."""
    report = Report(options.json, batch_size=options.batch_size, window=options.window)
    loading: list[LoaderRow] = []
    reading: list[ReadingRow] = []
    with cpu_threads(1), tempfile.TemporaryDirectory() as folder:
        for size in map(FrameSize.parsed, options.sizes):
            _measure_size(size, Path(folder), options, loading, reading)
    report.table(loader_table(loading), notes(options))
    if reading:
        report.table(reading_table(reading), READING_NOTES)
    elif not is_installed():
        report.text(NOT_THERE)
    report.figures["loading"] = [asdict(row) for row in loading]
    report.figures["reading"] = [{**asdict(row), "ratio": row.ratio} for row in reading]
    report.write()


def _measure_size(
    size: FrameSize,
    folder: Path,
    options: LoaderOptions,
    loading: list[LoaderRow],
    reading: list[ReadingRow],
) -> None:
    """Add the rows of one size."""
    for storage in options.storages:
        path = folder / "data.hdf5"
        write_data(path, size, storage)
        windows = windows_of(path, size, storage, options)
        stored_kb = frame_kb(path)
        loading += [
            measure_case(windows, size, storage, stored_kb, n, options) for n in options.workers
        ]
        same_size = (size.height, size.width) == (size.side, size.side)
        if is_installed() and same_size and storage in READABLE:
            reading.append(measure_reading(path, windows, size, storage, options))
        windows.frames.close()
        path.unlink()
