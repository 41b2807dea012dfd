"""Time the tasks that the options name, and report their figures."""

from __future__ import annotations

from dataclasses import asdict

from ttm.sim.environment import KITCHEN, inspect_env
from ttm.training.bench.report import Report
from ttm.training.bench.sim.measure import measure_tasks
from ttm.training.bench.sim.one_core import one_core
from ttm.training.bench.sim.options import SimOptions
from ttm.training.bench.sim.tables import NOTES, part_table, speed_table


def run_bench(options: SimOptions) -> None:
    """Time all tasks on one core, print tables, and write the figures."""
    with one_core() as kept:
        tasks = inspect_env(KITCHEN).choose(options.tasks)
        rows = measure_tasks(tasks, options.episodes, options.gap)
    report = Report(options.json, one_core=kept, gap=options.gap, episodes=options.episodes)
    report.table(speed_table(rows))
    report.table(part_table(rows), NOTES)
    report.figures["rows"] = [asdict(row) for row in rows]
    report.write()
