"""Run the nodes, and report how long the robot waited for zero."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.bars import bar_table
from ttm.training.bench.e_stop.options import EStopOptions
from ttm.training.bench.e_stop.verdict import NOTES, lines
from ttm.training.bench.report import Report
from ttm.training.bench.watched_nodes import run_beside, some_instruction

LIMIT_S = 3600.0
"""The longest time that all of it may take."""


def run_bench(options: EStopOptions) -> int:
    """Measure, print a table, and write the figures. Return 1 if a bar is missed, and 0 otherwise."""
    report = Report(options.json, presses=options.presses, seed=options.seed)
    measured = run_nodes(options)
    rows = lines(measured)
    report.table(
        bar_table("From the press until zero has arrived on all motion topics", rows), NOTES
    )
    report.figures |= measured
    report.write()
    return int(any(row.holds is False for row in rows))


def run_nodes(options: EStopOptions) -> dict[str, Any]:
    """Run both nodes, and return the fields of `ttm_policy.faults.presses.Measured`.

    Raises `UserError` if they end before.
    """
    checkpoint = checkpoint_path(options.checkpoint or SHIPPED).resolve()
    loaded, _ = load_checkpoint(checkpoint)
    instruction = some_instruction(loaded)
    policy = {
        "checkpoint": str(checkpoint),
        "instruction": instruction,
        "use_sim_time": True,
        "stop_after_s": LIMIT_S,  # what a busy computer does to the sensors is not measured here
    }
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        presses = {
            "spec": loaded.spec.to_json(),
            "instruction": instruction,
            "presses": options.presses,
            "seed": options.seed,
            "out": str(Path(folder) / "presses.json"),
        }
        measured, _ = run_beside(policy, "faults.presses", presses, LIMIT_S)
    return measured
