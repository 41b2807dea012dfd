"""Runs the policy's node beside a robot whose sensors fail, and watches its memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttm.policy.errors import UserError
from ttm.policy.run.checkpoint import load_checkpoint
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.faults.options import FaultsOptions
from ttm.training.bench.watched_nodes import run_beside, some_instruction
from ttm.training.robot.processes import run_program

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
