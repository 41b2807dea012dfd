"""Write the data sets, open each twice in processes of their own, and compare with the bars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ttm.datasets.index.database import VARIABLE
from ttm.policy.errors import UserError
from ttm.training.bench.bars import Line, bar_table
from ttm.training.bench.opening.material import write_files
from ttm.training.bench.opening.opened import Opened
from ttm.training.bench.opening.options import OpeningOptions
from ttm.training.bench.report import Report

FIRST_S, SECOND_S, PEAK_MB, GROWTH_MB = 60.0, 5.0, 2000.0, 20.0
"""The bars, for 20,000 episodes on two cores."""
NOTES = """\
  memory      the largest of the process that opened the data, with its libraries.
  growth      from the second to the last tenth of {batches} batches, which are made from files.
"""


def run_bench(options: OpeningOptions) -> int:
    """Measure both data sets, print tables, and write the figures; return 1 if a bar was missed."""
    report = Report(options.json, episodes=options.episodes, batches=options.batches)
    every: list[Line] = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ttm_opening_") as made:
        for name, files in (("single", options.episodes), ("merged", options.merged)):
            folder = Path(made) / name
            write_files(folder, options.episodes, files)
            first = measured(folder, 0)
            second = measured(folder, options.batches)
            rows = list(lines(first, second))
            report.table(bar_table(f"{options.episodes} episodes in {files} files", rows))
            report.figures[name] = {"first": asdict(first), "second": asdict(second)}
            every += rows
    report.text(NOTES.format(batches=options.batches))
    report.write()
    return int(any(line.holds is False for line in every))


def lines(first: Opened, second: Opened) -> Iterator[Line]:
    """Yield the figures of two openings beside their bars."""
    for what, value, bar in (
        ("first opening, s", first.clock_s, FIRST_S),
        ("second opening, s", second.clock_s, SECOND_S),
        ("memory, first, MB", first.peak_mb, PEAK_MB),
        ("memory, second, MB", second.peak_mb, PEAK_MB),
        ("growth in training, MB", second.growth_mb, GROWTH_MB),
    ):
        yield Line(what, value, 1, f"{bar:g}", None if value is None else value <= bar)
    yield Line("first opening, processor s", first.processor_s, 1, "", None)
    yield Line("second opening, processor s", second.processor_s, 1, "", None)


def measured(folder: Path, batches: int) -> Opened:
    """Open `folder` in a new process, whose index lies beside the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "ttm.training.bench.opening.opened", str(folder), str(batches)],
        env={**os.environ, VARIABLE: str(folder.with_suffix(".sqlite"))},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"opening {folder} ended with exit code {done.returncode}; its output is above"
        )
    return Opened(**json.loads(done.stdout))
