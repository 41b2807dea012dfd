"""Write the episodes, time their windows, and report."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from ttm.policy.run.threads import cpu_threads
from ttm.training.bench.loader.beside_robomimic import (
    READABLE,
    ReadingRow,
    is_installed,
    measure_reading,
)
from ttm.training.bench.loader.material import frame_kb, write_data
from ttm.training.bench.loader.measure import LoaderRow, measure_case, windows_of
from ttm.training.bench.loader.options import FrameSize, LoaderOptions
from ttm.training.bench.loader.tables import READING_NOTES, loader_table, notes, reading_table
from ttm.training.bench.report import Report

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
