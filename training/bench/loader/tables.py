"""The tables that `ttm bench loader` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ttm.training.bench.loader.beside_robomimic import ReadingRow
from ttm.training.bench.loader.measure import LoaderRow
from ttm.training.bench.loader.options import LoaderOptions
from ttm.training.bench.report import decimals, rows_table

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
