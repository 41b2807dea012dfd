"""The same windows read by robomimic's `SequenceDataset`, where it is installed.

It neither decodes JPEGs nor resizes or augments frames, so that only reading is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.bench.loader.material import CAMERA, VECTOR
from ttm.training.bench.loader.options import FrameSize, LoaderOptions, Storage

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
    """Let both read batches of random windows from the same file, in turns."""
    theirs = _sequence_dataset(path, storage, options.window)
    rng = np.random.default_rng(0)
    readers: list[tuple[Callable[[list[int]], Any], int]] = [
        (windows.gather, len(windows)),
        (lambda chosen: default_collate([theirs[index] for index in chosen]), len(theirs)),
    ]
    taken, counts = [0.0, 0.0], [0, 0]
    for turn in range(ROUNDS + 1):
        for reader, (read, total) in enumerate(readers):
            begun, clock, count = time.process_time(), time.perf_counter(), 0
            while time.perf_counter() - clock < options.seconds / ROUNDS or not count:
                read(rng.integers(0, total, options.batch_size).tolist())
                count += options.batch_size
            if turn:  # the first turn warms up
                taken[reader] += time.process_time() - begun
                counts[reader] += count
    ours, robomimics = (count / seconds for count, seconds in zip(counts, taken, strict=True))
    return ReadingRow(size.text, storage, ours, robomimics)


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
