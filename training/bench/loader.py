"""`ttm bench loader`: the time of the batches of a training, by where their frames come from.

Episodes of made-up pictures are written to one file of each storage. Where robomimic is installed, its
`SequenceDataset` reads the same windows beside. It neither decodes JPEGs nor resizes or augments
frames, so that only reading is compared there.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
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
TURNS = 5
"""Turns that both readers take, ours and robomimic's."""

NOTES = f"""\
  frames      as they are stored, and the side to which they are resized, in pixels.
  kB          size of a frame in the file, in thousands of bytes.
  workers     processes that make batches; 0: a thread of the training's process.
  windows/s   windows a second, augmented, while nothing else is done; per core: by processor time.
  waiting     portion of a training step that is waited, if it takes {STEP_S * 1e3:g} ms besides.
"""
READING_NOTES = """\
  Windows per second of processor time, read in turns in one process, neither resized nor augmented.
  ours: in the order of a training, from files in sections. robomimic: its SequenceDataset in random
  order, with hdf5_cache_mode "all" for ram and None for files.
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


class Case:
    """Windows of a file, with the frames in memory or not, drawn as a training does."""

    def __init__(self, path: Path, size: FrameSize, storage: Storage, shuffle: int) -> None:
        """path: a file of `write_data`. shuffle: see `BenchLoaderCommand`."""
        self._path, self._storage, in_memory = path, storage, storage == "ram"
        episodes = open_dataset(path)
        if not in_memory and shuffle:
            times = -(-shuffle * BATCH_SIZE * WINDOWS_IN_A_LANE // episodes.num_ticks)
            episodes = EpisodeDataset(list(episodes) * times, episodes.spec, source=str(path))
        resized = {CAMERA: (size.side, size.side)}
        cache: Literal["ram", "none"] = "ram" if in_memory else "none"
        self.windows = WindowDataset(episodes, WINDOW, resize_to=resized, cache=cache)
        self._memory = FromZero(None if in_memory else shuffle or None)
        self._warm_up = WARM_UP + (self._memory.apart or 0) * SECTIONS_WARM_UP
        self._named = {"size": size.text, "storage": storage}

    def _source(self, **how: Any) -> BatchSource:
        return BatchSource(self.windows, BATCH_SIZE, 0, memory=self._memory, **how)

    def loading(self, workers: int, seconds: float) -> Figures:
        """Time batches, augmented as in a training, that are made by so many workers."""
        batches = self._source(augmentation=AugmentationConfig(), workers=workers).batches(0)
        with closing(batches):  # type: ignore[type-var]
            for _ in range(self._warm_up):
                next(batches)
            count, spent, clock = read_for(seconds, partial(next, batches))
            waited = 0.0
            for _ in range(STEPS):
                time.sleep(STEP_S)
                waited += float(repeated(partial(next, batches), 1)[0])
        return {
            **self._named,
            "frame_kb": self._path.stat().st_size / (EPISODES * TICKS) / 1e3,
            "workers": workers,
            "windows_per_s": count / clock,
            # The time of workers is not counted.
            "windows_per_core_s": None if workers else count / spent,
            "waiting": waited / (waited + STEPS * STEP_S),
        }

    def reading(self, seconds: float) -> Figures:
        """Let ours and robomimic read batches of windows from the same file, in turns.

        Ours come in the order of a training, and before it augments them; robomimic's in random order,
        as its trainings have them.
        """
        theirs, rng = sequence_dataset(self._path, self._storage, WINDOW), np.random.default_rng(0)
        recent = self._source().recent_frames()
        picks = self._memory.picks(self.windows, BATCH_SIZE, seed=0, first_batch=0)
        ours = (self.windows.gather_at(pick.places, recent=recent) for pick in picks)

        def robomimics() -> object:
            chosen = rng.integers(0, len(theirs), BATCH_SIZE).tolist()
            return default_collate([theirs[index] for index in chosen])

        for _ in range(self._warm_up):
            next(ours)
        readers: list[Callable[[], object]] = [partial(next, ours), robomimics]
        turns = [[read_for(seconds / TURNS, r)[:2] for r in readers] for _ in range(TURNS + 1)]
        counts, spent = np.sum(turns[1:], axis=0).T  # the first turn warms up
        mine, robomimic = (counts / spent).tolist()
        return {**self._named, "ours": mine, "robomimics": robomimic, "ratio": mine / robomimic}


def read_for(seconds: float, read: Callable[[], object]) -> tuple[int, float, float]:
    """Read batches for some time; return their windows, and seconds of the processor and on the clock."""
    count, clock, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - clock < seconds or not count:
        read()
        count += BATCH_SIZE
    return count, time.process_time() - spent, time.perf_counter() - clock


def is_installed() -> bool:
    """Return whether robomimic can be imported."""
    return find_spec("robomimic") is not None


def sequence_dataset(path: Path, storage: Storage, window: int) -> Any:
    """Return robomimic's data set of the windows of a file."""
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


@dataclass(frozen=True)
class BenchLoaderCommand(BenchCommand):
    """Time the batches of a training, with frames from memory and from files.

    Episodes of random smooth pictures are written to a temporary folder, which takes up to a
    gigabyte. Prints windows a second, and the share of a training step that is spent waiting for its
    batch. Where robomimic is installed, its SequenceDataset reads the same windows beside. Takes some
    minutes; run it while nothing else runs.
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
        loading: list[Figures] = []
        reading: list[Figures] = []
        with cpu_threads(1), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.hdf5"
            for size, storage in product(sizes, self.storages):
                write_data(path, size, storage)
                case = Case(path, size, storage, self.shuffle)
                loading += [case.loading(workers, self.seconds) for workers in self.workers]
                if is_installed() and not size.is_resized and storage != "jpeg":
                    reading.append(case.reading(self.seconds))
                case.windows.frames.close()
                path.unlink()
        names: dict[str, Cell] = {"frames": "{size}", "from": "{storage}"}
        times: dict[str, Cell] = {
            "kB": "{frame_kb:.0f}",
            "workers": "{workers}",
            "windows/s": "{windows_per_s:.0f}",
            "per core": lambda row: decimals(row["windows_per_core_s"], 0),
            "waiting": "{waiting:.0%}",
        }
        report.rows("loading", "Batches of a training", names | times, loading, NOTES)
        if reading:
            ratios = {"ours": "{ours:.0f}", "robomimic": "{robomimics:.0f}", "ratio": "{ratio:.2f}"}
            title = "Reading alone, beside robomimic"
            report.rows("reading", title, names | ratios, reading, READING_NOTES)
        elif not is_installed():
            report.text("robomimic is not installed here, so that nothing is compared with it.")
