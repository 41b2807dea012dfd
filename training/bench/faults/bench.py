"""Run the nodes, and report whether any fault had a bad end."""

from __future__ import annotations

from ttm.policy.errors import UserError
from ttm.training.bench.bars import bar_table
from ttm.training.bench.faults.measure import run_nodes
from ttm.training.bench.faults.options import FaultsOptions
from ttm.training.bench.faults.verdict import NOTES, lines
from ttm.training.bench.memory_growth import growth_mb
from ttm.training.bench.report import Report


def run_bench(options: FaultsOptions) -> int:
    """Measure, print a table, and write the figures. Return 1 if a bar is missed, and 0 otherwise."""
    report = Report(options.json, minutes=options.minutes, seed=options.seed)
    run = run_nodes(options)
    if not run.trials:
        raise UserError("no fault has been tried; see the messages above")
    growth = growth_mb(run.memory_mb)
    rows = lines(run.trials, growth, run.blind_after_s)
    report.table(bar_table(f"{options.minutes:g} minutes of faults", rows), NOTES)
    for trial in run.trials:
        if trial["blind_moves"] or not (trial["stood"] and trial["told"]):
            report.text(f"see: {trial}")
    report.figures |= {"growth_mb": growth, "trials": run.trials}
    report.write()
    return int(any(row.holds is False for row in rows))
