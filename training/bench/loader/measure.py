"""Time the batches that a training would get."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.windows.sections import SECTION
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.bench.loader.material import CAMERA
from ttm.training.bench.loader.options import FrameSize, LoaderOptions, Storage
from ttm.training.cloning.batches import BatchSource, TrainingBatch
from ttm.training.cloning.memory_start import FromZero
from ttm.training.cloning.settings.groups import AugmentationConfig

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
