"""One opening of a data set, in this process, and a training's batches from it.

`python -m ttm.training.bench.opening.opened PATH BATCHES` prints what it took as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ttm.datasets.episode_dataset import EpisodeDataset, open_dataset
from ttm.datasets.windows.window_dataset import WindowDataset
from ttm.training.bench.resident_memory import resident_mb
from ttm.training.cloning.batches import BatchSource

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
