"""Run the parts of `ttm bench tick` that the options name, and report their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.table import Table

from ttm.policy.run.threads import cpu_threads
from ttm.training.bench.report import Report
from ttm.training.bench.tick.cores import measure_cores
from ttm.training.bench.tick.flat import measure_flat
from ttm.training.bench.tick.options import Part, TickOptions
from ttm.training.bench.tick.periodic_ticks import measure_periods
from ttm.training.bench.tick.tables import (
    PERIOD_NOTES,
    core_table,
    flat_table,
    period_table,
    unit_table,
    whole_table,
)
from ttm.training.bench.tick.unit import measure_units
from ttm.training.bench.tick.whole import measure_presets

INTRODUCTION = """\
{threads} CPU threads. Medians of single ticks at batch 1; error: the largest difference of an output
from PyTorch's.
"""

PARTS: Mapping[
    Part, tuple[Callable[[TickOptions], list[Any]], Callable[[Sequence[Any]], Table]]
] = MappingProxyType(
    {
        "unit": (lambda o: measure_units(o.blocks), unit_table),
        "flat": (lambda o: measure_flat(o.flat_ticks, o.growing_ticks), flat_table),
        "whole": (lambda o: measure_presets(o.presets, o.whole_ticks, o.torch_ticks), whole_table),
        "cores": (lambda o: measure_cores(o.blocks), core_table),
    }
)
"""Part -> a function that measures its rows, and one that shows them."""


def run_bench(options: TickOptions) -> None:
    """Time the parts one after the other, print a table for each, and write the figures."""
    report = Report(options.json, threads=options.threads)
    with cpu_threads(options.threads):
        report.text(INTRODUCTION.format(threads=options.threads))
        for part in options.parts:
            measure, show = PARTS[part]
            rows = measure(options)
            report.table(show(rows))
            report.figures[part] = [asdict(row) for row in rows]
        if "flat" in options.parts:
            periods = measure_periods(options.period_ticks)
            report.table(period_table(periods), PERIOD_NOTES)
            report.figures["periods"] = [asdict(row) for row in periods]
    report.write()
