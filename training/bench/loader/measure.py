"""Time the batches that a training would get."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.datasets.episode_dataset import open_dataset
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.bench.loader.material import CAMERA
from ttm.training.bench.loader.options import FrameSize, LoaderOptions, Storage
from ttm.training.cloning.batches import BatchSource, TrainingBatch
from ttm.training.cloning.settings.groups import AugmentationConfig

WARM_UP = 2
"""Batches that are not counted."""
STEPS = 8
"""Steps over which the share of waiting is taken."""


@dataclass(frozen=True)
class LoaderRow:
    """How fast batches came in one case."""

    size: str
    storage: Storage
    workers: int
    windows_per_s: float
    """On the clock, while nothing but loading is done."""
    windows_per_core_s: float | None
    """Per second of processor time; None with workers, whose time is not counted."""
    waiting: float
    """The portion of a training step that passes until its batch is there."""


def windows_of(path: Path, size: FrameSize, storage: Storage, window: int) -> WindowDataset:
    """Return the windows of a file, with the frames in memory or not."""
    return WindowDataset(
        open_dataset(path),
        window,
        resize_to={CAMERA: (size.side, size.side)},
        cache="ram" if storage == "ram" else "none",
    )


def measure_case(
    windows: WindowDataset, size: FrameSize, storage: Storage, workers: int, options: LoaderOptions
) -> LoaderRow:
    """Time the batches of `windows`, augmented as in a training, made by so many workers."""
    source = BatchSource(
        windows, options.batch_size, 0, augmentation=AugmentationConfig(), workers=workers
    )
    batches = source.batches(0)
    with closing(batches):  # type: ignore[type-var]
        for _ in range(WARM_UP):
            next(batches)
        speed = _speed(batches, options)
        waiting = _waiting(batches, options.step_ms / 1e3)
    per_core = None if workers else speed["processor"]
    return LoaderRow(size.text, storage, workers, speed["clock"], per_core, waiting)


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
