"""The same windows read by robomimic's `SequenceDataset`, where it is installed.

It neither decodes JPEGs nor resizes or augments frames, so that only reading is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.bench.loader.material import CAMERA, VECTOR
from ttm.training.bench.loader.measure import memory_start_of, warm_up
from ttm.training.bench.loader.options import FrameSize, LoaderOptions, Storage
from ttm.training.cloning.batches import BatchSource

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
