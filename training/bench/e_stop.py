"""Run the nodes, and report how long the robot waited for zero."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import options, require_at_least
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.common import Line, Report, bar_table
from ttm.training.bench.processes import run_beside, some_instruction
from ttm.training.robot.processes import require_rclpy

# The options of `ttm bench e-stop`.


@dataclass(frozen=True)
class EStopOptions:
    """How often it is pressed, and on which policy."""

    presses: int = 50
    """How often it is pressed while the policy drives, and as often while an instruction is prepared."""
    seed: int = 0
    """Seed of the pauses between presses."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what each press took to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_at_least(1, options(self, "presses"))
        require_at_least(0, options(self, "seed"))


# `ttm bench e-stop`: how soon the robot is stopped, also while the language model loads.


@dataclass(frozen=True)
class BenchEStopCommand(EStopOptions):
    """Press the emergency stop again and again, and time how long the robot waits for zero.

    The policy's node runs in real time beside a made-up robot. The button is pressed while the policy
    drives, and while an instruction that nobody has given before is prepared by the language model. The
    exit code is 1 if an answer to the latter, or the diagnostics meanwhile, came late. Run it while nothing
    else runs.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()

        return run_bench(self)


# What the presses have shown, beside the bars.

ANSWER_MS = 20.0
SILENCE_S = 1.5
"""Diagnostics come once a second."""

NOTES = """\
  driving    while the policy moves the robot; asked: while somebody calls set_parameters with 3,000 values,
             again and again; loading: while the language model prepares an instruction that nobody has
             given before, in a process of its own.
  prepared   how long such an instruction took while nothing was pressed, and the longest time without
             diagnostics meanwhile.
"""


def lines(measured: Mapping[str, Any]) -> list[Line]:
    """Return all figures with their bars. measured: the fields of `ttm_policy.faults.presses.Measured`."""
    silence_s = measured["silence_s"]
    return [
        *_answers("driving", measured["driving_s"], None),
        *_answers("asked", measured["asked_s"], ANSWER_MS),
        *_answers("loading", measured["loading_s"], ANSWER_MS),
        Line("prepared in, s", measured["prepared_s"], 1, "", None),
        Line("longest silence, s", silence_s, 2, f"<= {SILENCE_S:g}", silence_s <= SILENCE_S),
    ]


def _answers(state: str, took_s: Sequence[float], bar_ms: float | None) -> list[Line]:
    p50, p95, worst = np.percentile(took_s, [50, 95, 100]) * 1e3
    bar, holds = ("", None) if bar_ms is None else (f"<= {bar_ms:g}", bool(worst <= bar_ms))
    return [
        Line(f"{state}: presses", len(took_s), 0, "", None),
        Line("median, ms", p50, 1, "", None),
        Line("p95, ms", p95, 1, "", None),
        Line("worst, ms", worst, 1, bar, holds),
    ]


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
