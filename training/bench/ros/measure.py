"""Runs the policy's node beside made-up sensors, and watches its memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttm.policy.run.checkpoint import load_checkpoint, save_checkpoint
from ttm.sim.shipped import SHIPPED, checkpoint_path
from ttm.training.bench.ros.options import RosOptions
from ttm.training.bench.watched_nodes import run_beside, some_instruction

START_S = 300.0
"""The longest time until the first action, and from the last one until the sensors end."""


@dataclass(frozen=True)
class RosRun:
    """What was seen of one run."""

    arrivals_s: list[float]
    """When each action arrived, on a steady clock."""
    memory_mb: list[tuple[float, float]]
    """Time and resident memory of the policy's process, while actions arrived."""
    diagnostics: Mapping[str, str]
    """The last values on `/diagnostics`."""


def run_nodes(options: RosOptions) -> RosRun:
    """Run both nodes for the time that the options name.

    Raises `UserError` if the policy's node ends before, or sends nothing.
    """
    with _policy_at(options) as (checkpoint, spec, instruction), _out_file() as out:
        contract = str(options.contract or "")
        policy = {"checkpoint": str(checkpoint), "instruction": instruction, "contract": contract}
        sensors: dict[str, Any] = {"spec": spec, "contract": contract, "out": str(out)}
        sensors |= {"rate_hz": float(options.sensors_hz), "seconds": options.minutes * 60.0}
        limit_s = START_S + options.minutes * 60.0
        seen, memory = run_beside(policy, "sensors.fake_sensors", sensors, limit_s)
    arrivals = seen["arrivals_s"]
    memory = [sample for sample in memory if arrivals and sample[0] >= arrivals[0]]
    return RosRun(arrivals, memory, seen["diagnostics"])


@contextmanager
def _policy_at(options: RosOptions) -> Iterator[tuple[Path, str, str]]:
    """Yield a copy of the checkpoint that ticks at the wanted rate, its spec, and an instruction."""
    policy, info = load_checkpoint(checkpoint_path(options.checkpoint or SHIPPED))
    policy.spec = replace(policy.spec, rate_hz=options.rate_hz)
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        path = Path(folder) / "policy.safetensors"
        save_checkpoint(path, policy, info)
        yield path, policy.spec.to_json(), some_instruction(policy)


@contextmanager
def _out_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ttm_bench_") as folder:
        yield Path(folder) / "ticks.json"
