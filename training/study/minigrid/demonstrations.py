"""Demonstrations of a level's expert, recorded once in files that all trainings read.

A file holds the episodes of a range of seeds, so that several processes can record at the same
time, and an interrupted recording loses only what is not in a file yet. The fields of
`Demonstrations` are the format of these files.
"""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttm.policy.errors import UserError
from ttm.training.common.progress import print_progress
from ttm.training.study.minigrid.environment import VIEW, minigrid_version
from ttm.training.study.minigrid.level import Demonstration, Level, demonstrate

SEEDS_A_FILE = 500
"""Number of seeds whose episodes one file holds."""
FIRST_EVALUATION_SEED = 100_000_000
"""First seed of the evaluation. The seeds of the demonstrations begin at 0."""
LEAST_SOLVED = 0.05
"""Smallest portion of the seeds that the expert must solve to be a demonstrator of the level."""


@dataclass(frozen=True)
class Demonstrations:
    """Episodes one after another: the first `lengths[0]` ticks are those of the first episode."""

    images: NDArray[np.uint8]
    """(ticks, 7, 7, 3)."""
    directions: NDArray[np.uint8]
    """(ticks,)."""
    actions: NDArray[np.uint8]
    """(ticks,)."""
    lengths: NDArray[np.int64]
    """(episodes,), number of ticks."""
    missions: tuple[str, ...]
    """Instruction of each episode."""
    seeds: NDArray[np.int64]
    """(episodes,), in ascending order."""
    skipped: tuple[int, ...]
    """Seeds between these that the expert did not solve."""
    seconds: float
    """Time that one CPU core took to record."""

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.lengths)

    @property
    def per_second(self) -> float:
        """Demonstrations that one CPU core recorded in a second."""
        return len(self) / self.seconds

    def first(self, count: int) -> Demonstrations:
        """Return the first `count` episodes, with their part of the seconds."""
        ticks, last = int(self.lengths[:count].sum()), int(self.seeds[count - 1])
        return Demonstrations(
            self.images[:ticks],
            self.directions[:ticks],
            self.actions[:ticks],
            self.lengths[:count],
            self.missions[:count],
            self.seeds[:count],
            tuple(seed for seed in self.skipped if seed < last),
            self.seconds * count / len(self),
        )


def load_or_record(level: Level, count: int, cache: Path, workers: int) -> Demonstrations:
    """Return the first `count` episodes, by seed, that the expert solves.

    They are read from files in a folder of `cache`. Missing and damaged files are recorded by so
    many processes. The result depends on level and count alone, except for its seconds. Raises
    `UserError` if the level does not exist, if the expert hardly ever solves it, or if the folder
    cannot be written.
    """
    level.environment()  # raises here, rather than in every worker
    folder = cache / f"{level.name}-minigrid-{minigrid_version()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {cache} ({error}); give another folder with --cache"
        ) from error
    parts: list[Demonstrations] = []
    while (missing := count - sum(len(part) for part in parts)) > 0:
        wanted = range(len(parts), len(parts) + -(-missing // SEEDS_A_FILE))
        parts += _files(level, folder, wanted, workers)
        _require_solved(level, parts)
    return join(parts).first(count)


def record(level: Level, seeds: Iterable[int]) -> Demonstrations:
    """Record the expert's episodes with these seeds, except those that it does not solve."""
    environment = level.environment()
    begun = time.process_time()
    made = {seed: demonstrate(level, environment, seed) for seed in seeds}
    solved = {seed: episode for seed, episode in made.items() if episode is not None}
    skipped = tuple(seed for seed in made if seed not in solved)
    return _end_to_end(solved, skipped, time.process_time() - begun)


def join(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Return the episodes of all parts, one part after the other."""
    return Demonstrations(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.directions for part in parts]),
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        tuple(mission for part in parts for mission in part.missions),
        np.concatenate([part.seeds for part in parts]),
        tuple(seed for part in parts for seed in part.skipped),
        sum(part.seconds for part in parts),
    )


def write(path: Path, recorded: Demonstrations) -> None:
    """Write a file, so that another process never reads half of it."""
    # numpy writes to paths that end with .npz; the process id keeps several commands apart.
    unfinished = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    values: dict[str, Any] = {name: np.asarray(value) for name, value in vars(recorded).items()}
    np.savez_compressed(unfinished, **values)
    unfinished.replace(path)


def read(path: Path) -> Demonstrations | None:
    """Read a file that `write` wrote; return None if it does not exist or is damaged.

    Prints on stderr if it is damaged.
    """
    try:
        with np.load(path) as stored:
            values: dict[str, Any] = {name: stored[name] for name in stored.files}
            values |= {name: tuple(values[name].tolist()) for name in ("missions", "skipped")}
            return Demonstrations(**{**values, "seconds": float(values["seconds"])})
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        print_progress(f"{path} is damaged ({error}); it is recorded again")
        return None


def _files(
    level: Level, folder: Path, numbers: Sequence[int], workers: int
) -> list[Demonstrations]:
    """Read the files with these numbers in order; record and write those that are missing."""
    paths = {number: folder / f"seeds-{number * SEEDS_A_FILE:08d}.npz" for number in numbers}
    known = {number: read(path) for number, path in paths.items()}
    missing = [number for number, part in known.items() if part is None]
    begun = time.perf_counter()
    for done, (number, part) in enumerate(_record_files(level, missing, workers), start=1):
        write(paths[number], part)
        known[number] = part
        elapsed = time.perf_counter() - begun
        print_progress(
            f"recorded {done * SEEDS_A_FILE:,} of {len(missing) * SEEDS_A_FILE:,} seeds "
            f"of {level.name}, {elapsed:.0f} s"
        )
    return [part for part in known.values() if part is not None]


def _record_files(
    level: Level, numbers: Sequence[int], workers: int
) -> Iterator[tuple[int, Demonstrations]]:
    """Record the files with these numbers in order, in at most so many processes."""
    if min(workers, len(numbers)) < 2:
        yield from ((number, _record_file(level, number)) for number in numbers)
        return
    # Processes are spawned, because torch's threads do not survive a fork.
    with ProcessPoolExecutor(min(workers, len(numbers)), mp_context=get_context("spawn")) as pool:
        yield from zip(
            numbers, pool.map(_record_file, [level] * len(numbers), numbers), strict=True
        )


def _record_file(level: Level, number: int) -> Demonstrations:
    return record(level, range(number * SEEDS_A_FILE, (number + 1) * SEEDS_A_FILE))


def _end_to_end(
    solved: dict[int, Demonstration], skipped: tuple[int, ...], seconds: float
) -> Demonstrations:
    episodes = list(solved.values())
    # The empty arrays in front give the result its shape and type if there is no episode.
    images = [np.empty((0, VIEW, VIEW, 3), np.uint8), *(episode.images for episode in episodes)]
    nothing = np.empty(0, np.uint8)
    return Demonstrations(
        np.concatenate(images),
        np.concatenate([nothing, *(episode.directions for episode in episodes)]),
        np.concatenate([nothing, *(episode.actions for episode in episodes)]),
        np.array([len(episode.actions) for episode in episodes], np.int64),
        tuple(episode.mission for episode in episodes),
        np.array(list(solved), np.int64),
        skipped,
        seconds,
    )


def _require_solved(level: Level, parts: Sequence[Demonstrations]) -> None:
    solved, tried = sum(map(len, parts)), SEEDS_A_FILE * len(parts)
    if solved < LEAST_SOLVED * tried:
        raise UserError(
            f"the expert solves {solved} of {tried} seeds of level {level.name}, too few to learn from; "
            f"give another --level"
        )
