"""Run the nodes, and report how regular the ticks were."""

from __future__ import annotations

from dataclasses import asdict

from ttm.training.bench.bars import bar_table
from ttm.training.bench.memory_growth import growth_mb
from ttm.training.bench.report import Report
from ttm.training.bench.ros.measure import run_nodes
from ttm.training.bench.ros.options import RosOptions
from ttm.training.bench.ros.regularity import regularity
from ttm.training.bench.ros.tables import NOTES, lines


def run_bench(options: RosOptions) -> None:
    """Measure, print a table, and write the figures. Raises `UserError` if there were no ticks."""
    report = Report(options.json, rate_hz=options.rate_hz, sensors_hz=options.sensors_hz)
    run = run_nodes(options)
    period_s = 1.0 / options.rate_hz
    found, growth = regularity(run.arrivals_s, period_s), growth_mb(run.memory_mb)
    seconds = run.arrivals_s[-1] - run.arrivals_s[0]
    title = f"policy_node at {options.rate_hz:g} Hz for {seconds:.0f} s"
    report.table(bar_table(title, lines(found, growth, period_s)), NOTES)
    told = ", ".join(f"{key} {value}" for key, value in run.diagnostics.items() if "_ms" in key)
    report.text(f"/diagnostics at the end: {run.diagnostics.get('message', 'nothing')}; {told}")
    report.figures |= {
        **asdict(found),
        "growth_mb": growth,
        "seconds": seconds,
        "diagnostics": dict(run.diagnostics),
    }
    report.write()
