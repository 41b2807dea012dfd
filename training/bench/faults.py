"""Run the nodes, and report whether any fault had a bad end."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.policy.checkpoint import load_checkpoint
from ttm.policy.errors import UserError, options, require_above_0, require_at_least
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.common import Line, Report, bar_table
from ttm.training.bench.processes import SETTLING_S, growth_mb, run_beside, some_instruction
from ttm.training.robot.processes import require_rclpy, run_program

# The options of `ttm bench faults`.


@dataclass(frozen=True)
class FaultsOptions:
    """How long faults come, and which."""

    minutes: float = 60.0
    """How long faults come, from the first motion on."""
    seed: int = 0
    """Seed of the faults, of when they begin and how long they last."""
    slack_s: float = 0.1
    """What a stop may take beyond max_age_s and a tick: for a computer that is busy with other work."""
    checkpoint: Path | None = None
    """A .safetensors file for the simulated robot; by default the policy that ships with the project."""
    json: Path | None = None
    """Also write what happened in each fault to this file."""

    def check(self) -> None:
        """Raise `UserError` for a value that cannot be."""
        require_above_0(options(self, "minutes"))
        require_at_least(0, options(self, "seed", "slack_s"))


# `ttm bench faults`: a night of failing sensors, in an hour.


@dataclass(frozen=True)
class BenchFaultsCommand(FaultsOptions):
    """Break the sensors of a running policy every 20 seconds, and see that it never moves blindly.

    The policy's node runs in real time beside a made-up robot. Faults are drawn from the table of stamps,
    silence, clocks, second publishers, bad values and emergency stops. The exit code is 1 if the robot
    moved while the policy could not see it, if a fault was a dead end, or if the node's memory grew.
    """

    def run(self) -> int:
        """Measure and print; return the exit code."""
        self.check()
        require_rclpy()

        return run_bench(self)


# Runs the policy's node beside a robot whose sensors fail, and watches its memory.

MAX_AGE_S = 0.5
"""Largest accepted age of an observation."""
START_S = 600.0
"""The longest time beside that of the faults."""


@dataclass(frozen=True)
class FaultsRun:
    """What happened."""

    trials: list[dict[str, Any]]
    """The fields of `ttm_policy.faults.campaign.Trial` for each fault."""
    memory_mb: list[tuple[float, float]]
    """Time and resident memory of the policy's process, from the first motion on."""
    blind_after_s: float
    """How long after its beginning a fault may move the robot."""


def run_nodes(options: FaultsOptions) -> FaultsRun:
    """Run both nodes for the time that the options name.

    Raises `UserError` if they end before.
    """
    checkpoint = checkpoint_path(options.checkpoint or SHIPPED).resolve()
    loaded, _ = load_checkpoint(checkpoint)
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        contract, out = str(Path(folder) / "robot.yaml"), Path(folder) / "trials.json"
        if run_program("faults.strict_contract", {"out": contract}):
            raise UserError("the contract could not be written; see the message above")
        policy: dict[str, Any] = {"checkpoint": str(checkpoint), "contract": contract}
        policy["instruction"] = some_instruction(loaded)
        policy["use_sim_time"] = True  # so that the clock can fail, too
        policy["max_age_s"] = MAX_AGE_S
        blind_after_s = MAX_AGE_S + loaded.spec.control_dt_s + options.slack_s
        campaign = {
            "spec": loaded.spec.to_json(),
            "contract": contract,
            "seconds": options.minutes * 60.0,
            "blind_after_s": blind_after_s,
            "seed": options.seed,
            "out": str(out),
        }
        limit_s = START_S + options.minutes * 60.0
        seen, memory = run_beside(policy, "faults.campaign", campaign, limit_s)
    memory = [sample for sample in memory if sample[0] >= seen["started_s"]]
    return FaultsRun(seen["trials"], memory, blind_after_s)


# What the faults have shown, beside the bars.

GROWTH_MB = 1.0

NOTES = f"""\
  blind    the robot was commanded to move although the fault had lasted longer than max_age_s, a tick
           and --slack-s. Not told: the diagnostics never named the fault.
  recover  from the end of the fault until the robot moves again. A dead end: it does not within 10 s,
           although the services were called that the node's message asks for.
  growth   of the node's resident memory, from {SETTLING_S:g} s after the first motion until the end;
           a dash if that was too short.
"""


def lines(
    trials: Sequence[Mapping[str, Any]], growth_mb: float | None, blind_after_s: float
) -> list[Line]:
    """Return all figures with their bars.

    trials: the fields of each trial. blind_after_s: how long after its beginning a fault may move the robot.
    """
    blind = sum(trial["blind_moves"] for trial in trials)
    not_still = sum(not trial["stood"] for trial in trials)
    not_told = sum(not trial["told"] for trial in trials)
    recovered_s = [t["recovered_s"] for t in trials if t["recovered_s"] is not None]
    dead_ends = len(trials) - len(recovered_s)
    moving_s = max((trial["moving_s"] for trial in trials), default=0.0)
    grown = None if growth_mb is None else growth_mb < GROWTH_MB
    return [
        Line("faults", len(trials), 0, "> 0", len(trials) > 0),
        Line("kinds of faults", len({trial["fault"] for trial in trials}), 0, "", None),
        Line("blind moves", blind, 0, "0", blind == 0),
        Line("longest motion, s", moving_s, 3, f"<= {blind_after_s:g}", moving_s <= blind_after_s),
        Line("not at a stand", not_still, 0, "0", not_still == 0),
        Line("not told", not_told, 0, "0", not_told == 0),
        Line("dead ends", dead_ends, 0, "0", dead_ends == 0),
        Line("longest to recover, s", max(recovered_s, default=None), 1, "", None),
        Line("growth, MB", growth_mb, 2, f"< {GROWTH_MB:g}", grown),
    ]


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
